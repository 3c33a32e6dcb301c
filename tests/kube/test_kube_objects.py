"""What pods and pools come down to, and which pods a selector means."""

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_world import pool

from epp.kube.election import read_lease
from epp.kube.pods import read_pod
from epp.kube.policies import Rewrites, read_objective, read_rewrite
from epp.kube.pool import read_pool
from epp.kube.resources import LEGACY_GROUP, POOLS
from epp.kube.selector import Requirement, Selector, match_labels, parse_selector

PORTS = (8000, 8001)


def pod(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "vllm-0", "namespace": "ml", "uid": "u", "labels": {"app": "vllm", "llm-d.ai/role": "decode"}}
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": metadata | changes.pop("metadata", {}), "status": status | changes}


def endpoints(obj: dict[str, Any], ports: tuple[int, ...] = PORTS) -> dict[str, str]:
    return {endpoint.id: endpoint.address for endpoint in read_pod(obj).endpoints(ports)}


def test_a_ready_pod_is_an_endpoint_for_each_port_named_after_its_place() -> None:
    found = read_pod(pod()).endpoints(PORTS)
    assert [(e.id, e.address) for e in found] == [
        ("ml/vllm-0-rank-0", "10.0.0.1:8000"),
        ("ml/vllm-0-rank-1", "10.0.0.1:8001"),
    ]
    assert {e.role for e in found} == {"decode"}
    assert endpoints(pod(), (8001, 8000))["ml/vllm-0-rank-0"] == "10.0.0.1:8001"


@pytest.mark.parametrize(
    "changes",
    [
        {"podIP": ""},
        {"podIP": None},
        {"podIP": "no address!"},
        {"phase": "Failed"},
        {"phase": "Succeeded"},
        {"conditions": None},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"conditions": [{"type": "Initialized", "status": "True"}]},
        {"conditions": ["Ready"]},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"annotations": {"llm-d.ai/active-ports": "none"}}},
        {"metadata": {"annotations": {"llm-d.ai/active-ports": ""}}},
    ],
    ids=str,
)
def test_a_pod_that_cannot_serve_is_no_endpoint(changes: dict[str, Any]) -> None:
    assert endpoints(pod(**changes)) == {}


@pytest.mark.parametrize(
    ("annotations", "ports"),
    [
        ({"llm-d.ai/active-ports": "8001"}, [8001]),
        ({"llm-d.ai/active-ports": " 8001 ,x,99999999,8000"}, [8000, 8001]),
        ({"llm-d.ai/active-ports": "9000,8000"}, [8000]),
        ({"inference.networking.k8s.io/active-ports": "8001"}, [8001]),
        ({"inference.networking.k8s.io/active-ports": "8001", "llm-d.ai/active-ports": "8000"}, [8000]),
        ({"other": "8001"}, [8000, 8001]),
    ],
    ids=str,
)
def test_an_annotation_leaves_ports_out(annotations: dict[str, str], ports: list[int]) -> None:
    found = read_pod(pod(metadata={"annotations": annotations})).endpoints(PORTS)
    assert [e.port for e in found] == ports
    assert [e.name[-1] for e in found] == [str(PORTS.index(port)) for port in ports]


@pytest.mark.parametrize(
    ("host", "address"), [("FD00:0::1", "[fd00::1]:8000"), ("::ffff:10.0.0.7", "10.0.0.7:8000")], ids=["v6", "mapped"]
)
def test_addresses_are_canonical(host: str, address: str) -> None:
    assert endpoints(pod(podIP=host), (8000,)) == {"ml/vllm-0-rank-0": address}


def test_pools_of_both_groups() -> None:
    new = read_pool(pool("p", {"b": "2", "a": "1"}, [8000, 8001, 8000]))
    assert (str(new.selector), new.target_ports, new.fault) == ("a=1,b=2", (8000, 8001), None)
    old = read_pool(pool("p", {"a": "1"}, [9000], resource=POOLS[LEGACY_GROUP]))
    assert (str(old.selector), old.target_ports, old.fault) == ("a=1", (9000,), None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "no labels"),
        ({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}, "no labels"),
        # Without the odd one they would be other pods than are meant.
        ({"selector": {"matchLabels": {"a": "b", "c": 1}}, "targetPorts": [{"number": 1}]}, "one that is none"),
        ({"selector": {"matchLabels": {"a": "b,c"}}, "targetPorts": [{"number": 1}]}, "one that is none"),
        ({"selector": {"a": "b", "ü": ""}, "targetPortNumber": 1}, "one that is none"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "no port"),
        ({"selector": {"matchLabels": {"a": "b"}}, "targetPorts": [{"number": 0}, {"number": True}, "x"]}, "no port"),
    ],
    ids=str,
)
def test_a_pool_that_routes_nothing_says_why(spec: dict[str, Any], words: str) -> None:
    assert words in str(read_pool({"metadata": {"name": "p"}, "spec": spec}).fault)


KEYS_OF_OBJECTS = re.findall(
    r"\w+",
    "metadata status spec labels conditions podIP selector matchLabels targetPorts number name annotations poolRef "
    "priority rules matches model value targets weight modelRewrite holderIdentity",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["Ready", "True"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS_OF_OBJECTS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_an_object_is_it_can_be_read(value: Any) -> None:
    obj = value if isinstance(value, dict) else {}
    assert read_pod(obj).endpoints(PORTS) == ()
    assert read_pool(obj).target_ports is not None
    assert read_objective(obj).pool is not None
    rewrite = read_rewrite(obj)
    Rewrites([rewrite], rewrite.pool).resolve("m", random.Random(1))
    assert read_lease(obj).duration_s == 0


# --- selectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("app=vllm", {"app": "vllm"}, True),
        ("app == vllm , tier!=a", {"app": "vllm"}, True),  # != holds where the label is absent
        ("app=vllm,tier!=a", {"app": "vllm", "tier": "a"}, False),
        ("tier in (a, b)", {"tier": "b"}, True),
        ("tier in (a,b)", {}, False),
        ("tier notin (a,b)", {}, True),
        ("tier notin (a,b)", {"tier": "a"}, False),
        ("app", {"app": ""}, True),
        ("!app", {"app": ""}, False),
        ("! app", {}, True),
        ("example.com/gpus>1", {"example.com/gpus": "2"}, True),
        ("gpus>1", {"gpus": "1"}, False),
        ("gpus<3", {"gpus": "two"}, False),
        ("gpus<3", {}, False),
        ("empty=", {"empty": ""}, True),
        ("in=a,notin", {"in": "a", "notin": "b"}, True),
    ],
)
def test_selectors_match_as_in_kubernetes(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_selector(text).matches(labels) is matches


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "a=b,", "a b", "a in b", "a in (b c)", "in (a)", "a>b", "-a=b", "a=-b", "a/b/c", "A/b=c", "a=b;c=d"],
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|does not"):
        parse_selector(text)


KEYS = st.sampled_from(["app", "tier", "example.com/x"])
VALUES = st.sampled_from(["a", "b", "1", "2"])
REQUIREMENTS = st.one_of(
    st.builds(Requirement, KEYS, st.sampled_from(["exists", "!"])),
    st.builds(
        lambda key, operator, values: Requirement(key, operator, tuple(sorted(values))),
        KEYS,
        st.sampled_from(["in", "notin"]),
        st.sets(VALUES, min_size=1),
    ),
    st.builds(
        lambda key, op, n: Requirement(key, op, (str(n),)), KEYS, st.sampled_from(["gt", "lt"]), st.integers(-9, 9)
    ),
)


@given(st.lists(REQUIREMENTS, min_size=1, max_size=4))
def test_a_selector_is_read_as_it_is_written(requirements: list[Requirement]) -> None:
    selector = Selector(tuple(requirements))
    assert parse_selector(str(selector)) == selector


@given(st.dictionaries(KEYS, VALUES, min_size=1), st.dictionaries(KEYS, VALUES))
def test_a_map_of_labels_selects_what_has_them_all(wanted: dict[str, str], labels: dict[str, str]) -> None:
    assert match_labels(wanted).matches(labels) == (wanted.items() <= labels.items())
