import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.errors import DiscoveryError
from epp.pool.file_format import MAX_FILE_BYTES, parse_endpoints_file

GOOD = """\
endpoints:
- name: a
  address: 10.0.0.1
  port: 8000
- name: b
  namespace: prod
  address: fd00:0::1
  port: "8001"
  labels: {llm-d.ai/role: decode, metricsAddress: "metrics.example", metricsPort: "9000"}
- name: c
  address: gpu-7.example
  port: 8002
"""


def test_yaml_is_read() -> None:
    file = parse_endpoints_file(GOOD.encode(), "f")
    assert file.bad == ()
    a, b, c = file.endpoints
    assert (a.id, a.address, a.metrics_address, a.role) == ("default/a", "10.0.0.1:8000", "10.0.0.1:8000", None)
    assert (b.id, b.address, b.metrics_address, b.role) == (
        "prod/b",
        "[fd00::1]:8001",
        "metrics.example:9000",
        "decode",
    )
    assert c.address == "gpu-7.example:8002"


def test_json_is_read_even_with_tabs() -> None:
    entry = {"name": "a", "address": "10.0.0.1", "port": "8000", "labels": None}
    data = "\ufeff" + json.dumps({"endpoints": [entry]}, indent="\t")
    assert [e.address for e in parse_endpoints_file(data.encode(), "f").endpoints] == ["10.0.0.1:8000"]


def test_an_empty_pool_must_be_said() -> None:
    assert parse_endpoints_file(b"endpoints: []", "f").endpoints == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: no key 'endpoints'"),
        (b"endpoints:", "f: endpoints: must be a list"),
        (b"endpoints: {}", "f: endpoints: must be a list"),
        (b"- a", "f: no key 'endpoints'"),
        (b"endpoints: []\nendpoint: []", "f: unknown key 'endpoint'"),
        (b"endpoints:\n- name: 'a", "f:2: not valid YAML or JSON"),
        (b'{"endpoints": [{"name": "a"', "f:2: not valid YAML or JSON"),
        (b"endpoints: [!!python/object:os.system {}]", "f:1: not valid YAML or JSON"),
        (b"[" * 100_000, "f:1: not valid YAML or JSON"),
        (b"endpoints: []\xff", "f: not UTF-8 at byte 13"),
        (b" " * (MAX_FILE_BYTES + 1), "f: larger than 1048576 bytes"),
    ],
)
def test_a_fault_of_the_whole_file_is_one_line_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(DiscoveryError) as raised:
        parse_endpoints_file(data, "f")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("5", "endpoints[1]: 5 is not a mapping"),
        ("{address: a, port: 1}", "endpoints[1].name: missing"),
        ("{name: 5, address: a, port: 1}", "endpoints[1].name: 5 is not a string; put it in quotes"),
        ("{name: a/b, address: a, port: 1}", "endpoints[1].name: 'a/b' is not a name"),
        ("{name: x, port: 1}", "endpoints[1].address: missing"),
        ("{name: x, address: 10.0.0.256, port: 1}", "endpoints[1].address: '10.0.0.256' is not an IPv4 address"),
        ("{name: x, address: a}", "endpoints[1].port: missing"),
        ("{name: x, address: a, port: 0}", "endpoints[1].port: 0 is not a port from 1 to 65535"),
        ("{name: x, address: a, port: true}", "endpoints[1].port: True is not a port"),
        ("{name: x, address: a, port: 80.5}", "endpoints[1].port: 80.5 is not a port"),
        ("{name: x, address: a, port: http}", "endpoints[1].port: 'http' is not a port"),
        ("{name: x, adress: a, port: 1}", "endpoints[1]: unknown key 'adress'"),
        ("{name: x, address: a, port: 1, labels: [a]}", "endpoints[1].labels: a list is not a mapping"),
        ("{name: x, address: a, port: 1, labels: {v: 1.10}}", "endpoints[1].labels: 'v': 1.1 is not a string"),
        ("{name: x, address: a, port: 1, labels: {metricsPort: '0'}}", "endpoints[1].labels.metricsPort: '0' is not"),
    ],
)
def test_a_bad_entry_costs_itself_only_and_is_named(entry: str, message: str) -> None:
    file = parse_endpoints_file(f"endpoints:\n- {{name: ok, address: b, port: 1}}\n- {entry}\n".encode(), "f")
    assert [e.name for e in file.endpoints] == ["ok"]
    (bad,) = file.bad
    assert bad.message.startswith(f"f:3: {message}")
    assert "\n" not in bad.message


@given(st.one_of(st.binary(), st.integers(0, len(GOOD)).map(lambda cut: GOOD[:cut].encode())))
def test_no_content_fails_in_another_way(data: bytes) -> None:
    with contextlib.suppress(DiscoveryError):
        parse_endpoints_file(data, "f")
