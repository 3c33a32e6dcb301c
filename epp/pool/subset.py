"""The proxy's subset hint: the only endpoints that it lets this request go to."""

from collections.abc import Iterable

from epp.pool.address import split_host_port
from epp.pool.endpoint import join_host_port
from epp.pool.snapshot import Snapshot


def rows_in_subset(snapshot: Snapshot, subset: Iterable[str]) -> list[int]:
    """Rows of the endpoints that `subset` names, ascending.

    An entry is a host (every endpoint on it) or exactly one `host:port`. IPv6 may be bare or bracketed, IPv4 may be
    IPv4-mapped. An entry that cannot be read names nothing: a hint narrows, so garbage must never widen it.
    """
    return sorted({row for name in subset for row in _rows_named(snapshot, name)})


def _rows_named(snapshot: Snapshot, name: str) -> tuple[int, ...]:
    row = snapshot.row_by_address.get(name)  # the common case, and no parsing
    if row is not None:
        return (row,)
    try:
        host, port = split_host_port(name)
    except ValueError:
        return ()
    if port is None:
        return snapshot.rows_by_host.get(host, ())
    row = snapshot.row_by_address.get(join_host_port(host, port))
    return () if row is None else (row,)
