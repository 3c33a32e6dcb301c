"""What befalls a pool, as it is written on a command line: `kill@20s+15s`.

All but `add` befall the first server, each from one time to another. Two that would undo each other must not be at
once: the end of the first would end the second, too. A server that dies or restarts comes back new, so nothing else may
be the matter with it meanwhile; one that is slow may fail as well.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations, count
from typing import NamedTuple

from epp.lab.experiment import Change, Dies, Fails, Joins, LabServer, Leaves, Recovers, Restarts, Slows
from epp.problem import Problem
from epp.units import parse_duration_s

_FAULT = re.compile(r"(kill|restart|fail|add|slow([0-9.]+)x)@([^+]+)(?:\+(.+))?")
_OUTAGE_S = 15.0
_MOST_TIMES = 1_000.0  # slower: a run ends with its last request, which would take hours
_RENEW = ("kill", "restart")


class _Fault(NamedTuple):
    """`until_s`: infinite if it lasts to the end. `times`: of one that slows, how many times as long a step takes."""

    text: str
    kind: str
    times: float
    at_s: float
    until_s: float


def parse_faults(texts: Sequence[str], servers: Sequence[LabServer]) -> tuple[Change, ...]:
    """The changes that these faults stand for, together. They befall the first server of the pool. Raises `Problem`.

    * `kill@20s+15s`: it dies after 20 s, and 15 s later is back with an empty cache;
    * `restart@20s+15s`: it is taken out of the pool, and 15 s later is back with an empty cache;
    * `slow2x@20s+15s`: it takes twice as long; without `+…` to the end;
    * `fail@20s+15s`: it answers 500 after 2 ms;
    * `add@20s`: another server like it joins, `added`; one more, `added-2`.
    """
    # In the order in which they begin, so that at one time an end comes before the next beginning.
    faults = sorted(map(_read, texts), key=lambda fault: fault.at_s)
    for first, second in combinations(faults, 2):
        if second.at_s < first.until_s and _undo_each_other(first.kind, second.kind):
            lasts = "to the end" if first.until_s == math.inf else f"until {first.until_s:g} s"
            raise Problem(
                f"faults {first.text!r} and {second.text!r}: {servers[0].name} cannot have both at once; the first "
                f"lasts {lasts}; let it end before the second begins"
            )
    new_names = _new_names(servers)
    changes: list[Change] = []
    for fault in faults:
        if fault.kind == "add":
            changes.append(Joins(fault.at_s, LabServer(next(new_names), servers[0].engine)))
        else:
            changes += _changes_of(fault, servers[0].name)
    return tuple(changes)


def require_within(texts: Sequence[str], duration_s: float) -> None:
    """Raises `Problem` where one begins when no request arrives any more: it would change nothing, and nobody would
    know."""
    for fault in map(_read, texts):
        if fault.at_s >= duration_s:
            raise Problem(
                f"fault {fault.text!r} begins at {fault.at_s:.10g} s, and the run ends at {duration_s:.10g} s: let it "
                "begin before, or the run last longer"
            )


def time_text(time_s: float) -> str:
    """As a time of a fault is written."""
    return f"{time_s:.9f}".rstrip("0").rstrip(".") + "s"


def _read(text: str) -> _Fault:
    found = _FAULT.fullmatch(text.strip())
    if found is None:
        raise Problem(
            f"fault {text!r} is none of kill@T, restart@T, slow2x@T, fail@T, add@T; write for example kill@20s+15s"
        )
    kind, factor, at, lasting = found.groups()
    try:
        at_s = parse_duration_s(at)
        lasts_s = _OUTAGE_S if lasting is None else parse_duration_s(lasting)
    except ValueError as error:
        raise Problem(f"fault {text!r}: a time {error}") from None
    if min(at_s, lasts_s) < 0:
        raise Problem(f"fault {text!r}: a time is below 0")
    if kind == "add" and lasting is not None:
        raise Problem(f"fault {text!r}: a server that joins stays; write add@{at}")
    times = _times(factor) if factor else 1.0
    if not 0.0 < times <= _MOST_TIMES:
        raise Problem(f"fault {text!r}: {factor!r} is not a number above 0, to {_MOST_TIMES:,.0f}; write slow2x@20s")
    stays = factor is not None and lasting is None
    return _Fault(text, "slow" if factor else kind, times, at_s, math.inf if stays else at_s + lasts_s)


def _times(text: str) -> float:
    """0 for what is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _undo_each_other(first: str, second: str) -> bool:
    """Whether two kinds of faults cannot be true of one server at once. One that joins is another server."""
    if "add" in (first, second):
        return False
    return first == second or first in _RENEW or second in _RENEW


def _new_names(servers: Sequence[LabServer]) -> Iterator[str]:
    """Of servers that join: none that is taken."""
    taken = {server.name for server in servers}
    names = ("added" if number == 1 else f"added-{number}" for number in count(1))
    return (name for name in names if name not in taken)


def _changes_of(fault: _Fault, name: str) -> tuple[Change, Change] | tuple[Change]:
    at_s, until_s = fault.at_s, fault.until_s
    if fault.kind == "kill":
        return Dies(at_s, name), Restarts(until_s, name)
    if fault.kind == "restart":
        return Leaves(at_s, name), Restarts(until_s, name)
    if fault.kind == "fail":
        return Fails(at_s, name), Recovers(until_s, name)
    slows = Slows(at_s, name, fault.times)
    return (slows,) if until_s == math.inf else (slows, Slows(until_s, name, 1.0))


def servers_befallen(faults: Sequence[str], servers: Sequence[LabServer]) -> list[str]:
    """The names of the servers that these befall, or that join by them."""
    changes = parse_faults(faults, servers)
    return list(dict.fromkeys(c.server.name if isinstance(c, Joins) else c.server for c in changes))
