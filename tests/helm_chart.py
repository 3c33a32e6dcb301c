"""Helm and the chart for tests: what `helm template` makes of values, as objects; and schemas to hold them against."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from custom_kinds import KINDS, closed
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "manifests"
CHART = MANIFESTS / "chart" / "headroom"
SERVERS = {"router": {"modelServers": {"matchLabels": {"app": "vllm"}}}}
KUBERNETES = "1.37"  # whose built-in kinds are known

Object = dict[str, Any]


class NoHelm(Exception):
    """It is not installed. The message says how to."""


def find_helm() -> str:
    """That of the cache which `fetch_helm.py` fills, else of $PATH. Raises `NoHelm`."""
    cache = Path(os.environ.get("HEADROOM_KUBE_CACHE") or Path.home() / ".cache/headroom/kube")
    cached = cache / "bin" / "helm"
    found = str(cached) if os.access(cached, os.X_OK) else shutil.which("helm")
    if found is None:
        raise NoHelm("helm is missing: python tests/manifests/fetch_helm.py")
    return found


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values files: maps by key, all else replaced."""
    result: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return result


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [find_helm(), *arguments]
    if values is not None:
        command += ["--values", "-"]
    return subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60)


def template(values: Mapping[str, Any], *flags: str) -> "subprocess.CompletedProcess[str]":
    return helm("template", "llama", str(CHART), "--namespace", "inference", *flags, values=values)


def render(values: Mapping[str, Any]) -> list[Object]:
    """The objects that the chart makes of these values, which must be good ones."""
    done = template(values)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def objects(text: str) -> list[Object]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]


def of_kind(rendered: list[Object], kind: str) -> list[Object]:
    return [each for each in rendered if each["kind"] == kind]


def the(rendered: list[Object], kind: str) -> Object:
    """The only one of its kind."""
    (found,) = of_kind(rendered, kind)
    return found


def faults(each: Object) -> list[str]:
    """What is wrong with an object, unknown fields included: by Kubernetes' schema, or ours of a custom kind."""
    return list(_faults(json.dumps(each)))


@cache  # many values make some of the same objects, and each look at one reads megabytes of schemas
def _faults(text: str) -> tuple[str, ...]:
    each = json.loads(text)
    name = f"{each['kind']} {each['metadata']['name']}"
    resource = each["apiVersion"], each["kind"]
    if resource in KINDS:
        found = Draft202012Validator(closed(KINDS[resource])).iter_errors(each.get("spec"))
        return tuple(f"{name}: {error.json_path}: {error.message}" for error in found)
    try:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (f"{name}: {error}",)
    return ()
