import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.address import canonical_host, canonical_port, split_host_port
from epp.pool.endpoint import join_host_port


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fd00:0:0::1", "fd00::1"),
        ("FD00::A", "fd00::a"),
        ("[fd00::1]", "fd00::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("[::ffff:a00:1]", "10.0.0.1"),
        ("GPU-7.Example.", "gpu-7.example"),
        ("vllm_0", "vllm_0"),
    ],
)
def test_every_spelling_of_a_host_becomes_one(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text", ["", " ", "10.0.0.300", "10.0.0", "a..b", "-a", "a b", "http://a", "[a]", "fd00::g", "é"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an"):
        canonical_host(text)


@pytest.mark.parametrize("port", [0, -1, 65536, "0", "", "+80", "8_0", " 80", "٨٠", "1" * 5000])
def test_what_is_no_port_is_refused(port: str | int) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        canonical_port(port)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.1:8000", ("10.0.0.1", 8000)),
        ("10.0.0.1", ("10.0.0.1", None)),
        ("[fd00::10]:8000", ("fd00::10", 8000)),
        ("[fd00::10]", ("fd00::10", None)),
        ("fd00::10:8000", ("fd00::10:8000", None)),
        ("[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("gpu:80", ("gpu", 80)),
    ],
)
def test_host_and_port_are_split(text: str, parts: tuple[str, int | None]) -> None:
    assert split_host_port(text) == parts


@pytest.mark.parametrize(
    "text", ["[fd00::1", "[fd00::1]8000", "[10.0.0.1]:80", "[]:80", ":80", "a:", "a:b", "fd00:::1"]
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has"):
        split_host_port(text)


@given(st.one_of(st.ip_addresses().map(str), st.just("gpu-7")), st.integers(1, 65535))
def test_an_address_survives_joining_and_splitting(host: str, port: int) -> None:
    assert split_host_port(join_host_port(canonical_host(host), port)) == (canonical_host(host), port)


@given(st.text(alphabet="[]:.0123456789abcdef,-%/ "))
def test_splitting_fails_in_one_way_only(text: str) -> None:
    with contextlib.suppress(ValueError):
        split_host_port(text)
