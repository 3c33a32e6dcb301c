import pytest

from epp.pool.errors import DiscoveryError
from epp.pool.static import parse_endpoints


def test_ipv4_ipv6_and_host_names_are_read_in_order() -> None:
    endpoints = parse_endpoints("10.0.0.1:8000, [FD00::1]:8001,gpu:8002")
    assert [e.address for e in endpoints] == ["10.0.0.1:8000", "[fd00::1]:8001", "gpu:8002"]
    assert [e.id for e in endpoints] == ["default/10.0.0.1-8000", "default/fd00--1-8001", "default/gpu-8002"]


def test_an_endpoint_keeps_its_identity_when_others_come_and_go() -> None:
    assert parse_endpoints("b:1,a:1")[0] == parse_endpoints("b:1")[0]


@pytest.mark.parametrize(
    ("text", "named", "fix"),
    [
        ("", "no endpoints", "host:port"),
        ("a:1,,b:1", "entry 2", "extra comma"),
        ("a:1,", "entry 2", "extra comma"),
        ("a:1,10.0.0.1", "'10.0.0.1'", "10.0.0.1:8000"),
        ("fd00::1", "'fd00::1'", "[fd00::1]:8000"),
        ("a:99999", "'99999'", "host:port"),
        ("10.0.0.300:1", "'10.0.0.300'", "host:port"),
        ("http://a:1", "'http://a:1'", "without scheme"),
        ("[::ffff:10.0.0.1]:1,10.0.0.1:1", "10.0.0.1:1 is there twice", "remove one"),
    ],
)
def test_a_bad_entry_is_named_with_its_fix_in_one_line(text: str, named: str, fix: str) -> None:
    with pytest.raises(DiscoveryError) as raised:
        parse_endpoints(text)
    message = str(raised.value)
    assert message.startswith("--endpoints: ")
    assert named in message
    assert fix in message
    assert "\n" not in message
