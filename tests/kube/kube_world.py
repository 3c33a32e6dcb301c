"""Pods, pools and kinds of objects for the tests, and what the picker should make of them, worked out anew."""

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apiserver import Cluster

from epp.kube.resources import LEGACY_GROUP, LLMD_GROUP, PODS, POOL_GROUP, POOLS, Resource

NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
POOL = POOLS[POOL_GROUP]
KINDS = {
    "inferencepools": "InferencePool",
    "inferenceobjectives": "InferenceObjective",
    "inferencemodelrewrites": "InferenceModelRewrite",
}


def crd(resource: Resource) -> dict[str, Any]:
    """A definition that takes whatever is in `spec`; what is valid is for others to say."""
    kind = KINDS[resource.plural]
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": resource.name,
            # Groups under k8s.io are for those that were approved, or say that they were not.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": resource.group,
            "names": {"kind": kind, "plural": resource.plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": spec}}},
                }
            ],
        },
    }


async def install(cluster: Cluster, *resources: Resource) -> None:
    """Make these kinds known, and wait until they are."""
    for resource in resources:
        await cluster.create(CRDS, None, crd(resource))
    for resource in resources:
        await until(lambda resource=resource: cluster.get(resource, "default"), lambda found: found is not None)


async def uninstall(cluster: Cluster, *resources: Resource) -> None:
    for resource in resources:
        await cluster.delete(CRDS, None, resource.name)
    for resource in resources:
        await until(lambda resource=resource: cluster.get(resource, "default"), lambda found: found is None)


async def until(ask: Callable[[], Any], holds: Callable[[Any], bool], timeout_s: float = 60.0) -> Any:
    """Ask until the answer is right; what was answered last, if it never is."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if inspect.isawaitable(answer):
            answer = await answer
        if holds(answer):
            return answer
        assert time.monotonic() < deadline_s, f"still {answer!r} after {timeout_s:g} s"
        await asyncio.sleep(0.02)


def pool(
    name: str, labels: Mapping[str, str], ports: Sequence[int] = (8000,), *, resource: Resource = POOL
) -> dict[str, Any]:
    if resource.group == LEGACY_GROUP:
        spec: dict[str, Any] = {"selector": dict(labels), "targetPortNumber": ports[0]}
    else:
        spec = {"selector": {"matchLabels": dict(labels)}, "targetPorts": [{"number": port} for port in ports]}
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """On a node, so that a delete with grace leaves it there, terminating: no kubelet runs that would end it."""
    return {
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(annotations or {})},
        "spec": {"nodeName": "node", "containers": [{"name": "server", "image": "vllm"}]},
    }


def status(host: str, *, ready: bool) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"status": {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": conditions}}


async def start_pod(
    cluster: Cluster, namespace: str, name: str, labels: Mapping[str, str], host: str, *, ready: bool = True
) -> None:
    await cluster.create(PODS, namespace, pod(name, labels))
    await cluster.patch(PODS, namespace, name, status(host, ready=ready), status=True)


def objective(name: str, pool_name: str, priority: int | None, *, group: str = LLMD_GROUP) -> dict[str, Any]:
    spec: dict[str, Any] = {"poolRef": {"name": pool_name}}
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name},
        "spec": spec if priority is None else {**spec, "priority": priority},
    }


def rewrite(
    name: str, pool_name: str, rules: Sequence[Mapping[str, Any]], *, group: str = LLMD_GROUP
) -> dict[str, Any]:
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": pool_name}, "rules": list(rules)},
    }


def rule(*models: str, to: Mapping[str, int | None]) -> dict[str, Any]:
    targets = [
        {"modelRewrite": t} if weight is None else {"modelRewrite": t, "weight": weight} for t, weight in to.items()
    ]
    return {"matches": [{"model": {"type": "Exact", "value": model}} for model in models], "targets": targets}


def truth(pool_object: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Address by endpoint id, from what the API server lists now. A second reading of the rules, for v1 pools alone."""
    if pool_object is None or "deletionTimestamp" in pool_object["metadata"]:
        return {}
    wanted = pool_object["spec"]["selector"]["matchLabels"].items()
    found = {}
    for each in pods:
        metadata, said = each["metadata"], each.get("status", {})
        ready = {"type": "Ready", "status": "True"} in [
            {"type": c["type"], "status": c["status"]} for c in said.get("conditions", [])
        ]
        gone = "deletionTimestamp" in metadata or said.get("phase") in ("Failed", "Succeeded")
        if gone or not ready or not said.get("podIP") or not wanted <= metadata.get("labels", {}).items():
            continue
        active = metadata.get("annotations", {}).get("llm-d.ai/active-ports")
        for rank, port in enumerate(p["number"] for p in pool_object["spec"]["targetPorts"]):
            if active is None or str(port) in active.split(","):
                found[f"{metadata['namespace']}/{metadata['name']}-rank-{rank}"] = f"{said['podIP']}:{port}"
    return found


class Changes:
    """Random changes of one namespace, and the truth after each."""

    def __init__(self, cluster: Cluster, namespace: str, pool_name: str, seed: int) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._pool_name = pool_name
        self._rng = random.Random(seed)
        self._names = [f"pod-{i}" for i in range(12)]
        self._there: set[str] = set()
        self._pool: Any = None

    async def one(self) -> str:
        """Make one; returns what it was."""
        rng, cluster, ns = self._rng, self._cluster, self._namespace
        name = rng.choice(self._names)
        kinds = ["ready", "unready", "relabel", "annotate", "delete", "terminate", "recreate", "fail"] * 3
        kind = rng.choice([*kinds, "ports", "selector"]) if name in self._there else "create"
        if kind in ("delete", "recreate"):
            await cluster.delete(PODS, ns, name)
        if kind in ("create", "recreate"):
            await cluster.create(PODS, ns, pod(name, self._labels()))
            if rng.random() < 0.8:
                await cluster.patch(PODS, ns, name, status(self._host(), ready=rng.random() < 0.8), status=True)
        elif kind in ("ready", "unready"):
            await cluster.patch(PODS, ns, name, status(self._host(), ready=kind == "ready"), status=True)
        elif kind == "relabel":
            await cluster.patch(PODS, ns, name, {"metadata": {"labels": self._labels()}})
        elif kind == "annotate":
            ports = rng.choice([None, "8000", "8001,8002", "8000,8001,8002,x", ""])
            await cluster.patch(PODS, ns, name, {"metadata": {"annotations": {"llm-d.ai/active-ports": ports}}})
        elif kind == "terminate":
            await cluster.delete(PODS, ns, name, grace_s=60)
        elif kind == "fail":
            await cluster.patch(PODS, ns, name, {"status": {"phase": "Failed", "podIP": None}}, status=True)
        elif kind == "ports":
            ports = [{"number": port} for port in rng.sample([8000, 8001, 8002], rng.randint(1, 3))]
            self._pool = await cluster.patch(POOL, ns, self._pool_name, {"spec": {"targetPorts": ports}})
        elif kind == "selector":
            labels = {"app": "vllm", "tier": rng.choice([None, "a", "b"])}
            body = {"spec": {"selector": {"matchLabels": labels}}}
            self._pool = await cluster.patch(POOL, ns, self._pool_name, body)
        return f"{kind} {name}"

    async def truth(self) -> dict[str, str]:
        listed = await self._cluster.get(PODS, self._namespace)
        self._there = {pod["metadata"]["name"] for pod in listed["items"]}
        self._pool = self._pool or await self._cluster.get(POOL, self._namespace, self._pool_name)
        return truth(self._pool, listed["items"])

    def _labels(self) -> dict[str, str]:
        return {"app": self._rng.choice(["vllm", "vllm", "other"]), "tier": self._rng.choice(["a", "b"])}

    def _host(self) -> str:
        return f"10.0.{self._rng.randint(0, 255)}.{self._rng.randint(1, 254)}"
