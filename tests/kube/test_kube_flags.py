"""What the command line and the pod's environment say about Kubernetes, and the Role that follows from the code."""

import argparse
import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from epp.cli.kube_flags import add_kube_flags, kube_options
from epp.kube.access import kubeconfig_files
from epp.kube.options import KubeOptions, LeaseTimings, PodsBySelector, PoolByName
from epp.kube.permissions import When, permissions
from epp.kube.rbac import main
from epp.kube.resources import LEGACY_GROUP
from epp.problem import Problem

POD = {"POD_NAME": "picker-5d9c7bd6b9-x7k2p"}


def options(*arguments: str, environ: Mapping[str, str] | None = None) -> KubeOptions | None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool-name")
    parser.add_argument("--endpoints")
    add_kube_flags(parser)
    return kube_options(parser.parse_args(arguments), environ or {})


def test_without_a_name_or_a_selector_the_pool_comes_from_elsewhere() -> None:
    assert options() is None
    assert options("--pool-name", "p", "--endpoints", "10.0.0.1:8000") is None  # a label


def test_a_pool_by_name() -> None:
    found = options("--pool-name", "p", environ={"NAMESPACE": "ml", **POD})
    assert found is not None
    assert (found.source, found.namespace, found.lease_name) == (PoolByName("p"), "ml", "epp-ml-p.llm-d.ai")
    assert found.identity.startswith(POD["POD_NAME"])
    assert (found.leader_election, found.max_snapshot_age_s) == (None, None)
    other = options(
        "--pool-name", "p", "--pool-namespace", "x", "--pool-group", LEGACY_GROUP, environ={"NAMESPACE": "y"}
    )
    assert other is not None
    assert (other.source, other.namespace) == (PoolByName("p", LEGACY_GROUP), "x")


def test_two_pickers_never_have_one_identity() -> None:
    identities = {found.identity for _ in range(5) if (found := options("--pool-name", "p")) is not None}
    assert len(identities) == 5


def test_pods_by_selector() -> None:
    flags = ["--endpoint-selector", "app=vllm,tier in (b,a)", "--endpoint-target-ports", "8000,8001,8000"]
    found = options(*flags, "--ha-enable-leader-election", "--max-snapshot-age=15s", environ=POD)
    assert found is not None
    assert isinstance(found.source, PodsBySelector)
    assert (found.pool_name, str(found.source.selector)) == ("picker", "app=vllm,tier in (a,b)")
    assert found.source.target_ports == (8000, 8001)
    assert (found.leader_election, found.max_snapshot_age_s) == (LeaseTimings(), 15.0)


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["--endpoint-selector", "a=b", "--endpoint-target-ports", "1"], {}, ["POD_NAME", "not set"]),
        (["--endpoint-selector", "a=b", "--endpoint-target-ports", "1"], {"POD_NAME": "picker"}, ["'picker'"]),
        (["--endpoint-selector", "a=b"], POD, ["--endpoint-target-ports", "1 to 8"]),
        (["--endpoint-selector", "a=b", "--endpoint-target-ports", "1,2,3,4,5,6,7,8,9"], POD, ["not 9"]),
        (["--endpoint-selector", "a=b", "--endpoint-target-ports", "0"], POD, ["--endpoint-target-ports", "65535"]),
        (["--endpoint-selector", "", "--endpoint-target-ports", "1"], POD, ["--endpoint-selector"]),
        (["--pool-name", "p", "--ha-enable-leader-election", "--ha-retry-period", "2s"], {}, ["--ha-retry-period"]),
        (["--pool-name", "p", "--max-snapshot-age", "1s"], {}, ["--max-snapshot-age", "3s or more"]),
    ],
    ids=["no-pod-name", "odd-pod-name", "no-ports", "nine-ports", "port-0", "empty-selector", "slow-retry", "age"],
)
def test_what_cannot_work_is_said_with_the_fix(arguments: list[str], environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(Problem) as raised:
        options(*arguments, environ=environ)
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("name", "namespace", "flag"),
    [
        ("", "ml", "--pool-name"),
        ("a,metadata.namespace=b", "ml", "--pool-name"),
        ("Llama", "ml", "--pool-name"),
        ("llämä", "ml", "--pool-name"),
        ("a" * 254, "ml", "--pool-name"),
        ("llama", "ml/pods/../..", "--pool-namespace"),
        ("llama", "ml.x", "--pool-namespace"),
        ("llama", "ml\n", "--pool-namespace"),
    ],
)
def test_a_name_that_nothing_can_have_is_refused(name: str, namespace: str, flag: str) -> None:
    KubeOptions(PoolByName("llama-3.1-8b"), "ml").check()
    with pytest.raises(Problem, match=flag):
        KubeOptions(PoolByName(name), namespace).check()


def test_the_printed_roles_hold_every_permission_that_is_switched_on_and_no_other() -> None:
    for switched_on in ([When.DISCOVERY], [When.DISCOVERY, When.POOL], list(When)):
        out = io.StringIO()
        with redirect_stdout(out):
            assert main(["--namespace", "ml", "--for", *switched_on]) == 0
        said = {
            (group, resource, verb, role["kind"])
            for role in yaml.safe_load_all(out.getvalue())
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert said == {
            (p.resource.group, p.resource.plural, verb, "ClusterRole" if p.cluster_wide else "Role")
            for p in permissions()
            if p.when in switched_on
            for verb in p.verbs
        }


@pytest.mark.parametrize(
    ("flag", "environ", "files"),
    [
        ("a:b", {"KUBECONFIG": "c"}, [("--kubeconfig", "a"), ("--kubeconfig", "b")]),
        (None, {"KUBECONFIG": "c:", "KUBERNETES_SERVICE_HOST": "h"}, [("$KUBECONFIG", "c")]),
        (None, {"KUBECONFIG": ""}, [("the kubeconfig", str(Path.home() / ".kube" / "config"))]),
        (None, {"KUBERNETES_SERVICE_HOST": "h"}, []),
    ],
    ids=["flag", "environment", "default", "pod"],
)
def test_the_files_that_say_how_to_reach_the_api_server(
    flag: str | None, environ: Mapping[str, str], files: list[tuple[str, str]]
) -> None:
    assert [(name, str(path)) for name, path in kubeconfig_files(flag, environ)] == files
