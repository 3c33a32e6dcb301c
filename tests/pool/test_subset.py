import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.snapshot import Snapshot
from epp.pool.static import parse_endpoints
from epp.pool.subset import rows_in_subset

SNAPSHOT = Snapshot.build(parse_endpoints("10.0.0.1:8000,10.0.0.1:8001,10.0.0.10:8000,[fd00::10]:8000,gpu:8000"))


@pytest.mark.parametrize(
    ("subset", "rows"),
    [
        ((), []),
        (("10.0.0.1",), [0, 1]),
        (("10.0.0.1:8001",), [1]),
        (("10.0.0.1:9999",), []),
        (("fd00::10",), [3]),
        (("[fd00::10]",), [3]),
        (("[fd00::10]:8000",), [3]),
        (("[FD00:0::10]:8000",), [3]),
        (("[fd00::10]:8001",), []),
        (("fd00::10:8000",), []),
        (("::ffff:10.0.0.1",), [0, 1]),
        (("[::ffff:10.0.0.10]:8000",), [2]),
        (("gpu:8000", "GPU"), [4]),
        (("10.0.0.10:8000", "gpu:8000", "10.0.0.10"), [2, 4]),
        (("", ",", "10.0.0", "10.0.0.1:", ":8000", "*", "[", "10.0.0.1:80000"), []),
    ],
)
def test_the_hint_names_hosts_or_exact_addresses(subset: tuple[str, ...], rows: list[int]) -> None:
    assert rows_in_subset(SNAPSHOT, subset) == rows


@given(st.lists(st.text()))
def test_a_garbled_hint_matches_nothing_and_breaks_nothing(subset: list[str]) -> None:
    readable = any(host in entry.lower() for entry in subset for host in ("10", "gpu", "fd"))
    rows = rows_in_subset(SNAPSHOT, tuple(subset))
    assert rows == [] or readable
