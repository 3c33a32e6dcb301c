"""What `ours` is held to in the tables: each goal, whether it is met, and by how much.

A table holds what is attained, and first tokens at an easy load, against the best other policy; the oracle is no rival.
A sweep holds goodput against the best other policy, against the oracle, and on mixed hardware against the best of those
who treat all servers alike. Who is not among the policies that were run is not asked for: fewer policies, fewer goals.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epp.lab.comparison import Row, grouped_by_load
from epp.lab.oracle import NAME as ORACLE
from epp.lab.pools import parse_pool
from epp.lab.runs import policy_of
from epp.lab.sweep import MOST_LOAD, RATIOS, Goodput
from epp.lab.verdict import OURS, verdict

EASY_LOAD = 0.5
"""Where everybody keeps targets, so that what is left to compare is how soon first tokens come."""
ORACLE_SHARE = 0.95
"""Of the oracle's goodput, that `ours` has to have."""
MIXED_TIMES = 1.3
"""So many times the goodput of the best policy that treats unequal servers alike."""

_EASY_FIGURES = (("ttft_p50_ms", "TTFT p50"), ("ttft_p99_ms", "TTFT p99"))
_ROUNDING = 1e-9


class Judged(NamedTuple):
    """One goal at one place.

    Attributes:
        kind: what is compared, and what is asked; the same for all of one kind.
        where: workload and pool; `at`: load, or which goodput.
        words: how it stands.
    """

    kind: str
    where: str
    at: str
    met: bool
    words: str


def judged_rows(rows: Sequence[Row]) -> list[Judged]:
    """Of a table. A figure that somebody has not in all seeds, since nobody was answered, is not compared."""
    groups = grouped_by_load(row for row in rows if row.policy != ORACLE)
    found = []
    for group in sorted(groups, key=lambda group: group[0].load):
        load = group[0].load
        where, at = f"{group[0].workload} on {group[0].pool}", f"{load:g}"
        attained = {row.policy: [result.figures["attainment"] or 0.0 for result in row.results] for row in group}
        if (one := verdict(attained)) is not None:
            found.append(Judged("attained: best or tied", where, at, one.kept, one.words(".1%")))
        for figure, name in _EASY_FIGURES if load == EASY_LOAD else ():
            if (one := verdict(_known(group, figure), less_is_better=True)) is not None:
                kind = f"{name} at {EASY_LOAD:g}: lowest or tied"
                found.append(Judged(kind, where, at, one.kept, one.words(".1f", " ms")))
    places = list(dict.fromkeys(f"{row.workload} on {row.pool}" for row in rows))
    return sorted(found, key=lambda judged: places.index(judged.where))


def _known(rows: Sequence[Row], figure: str) -> dict[str, list[float]]:
    values = {row.policy: [result.figures[figure] for result in row.results] for row in rows}
    known = {policy: [value for value in of if value is not None] for policy, of in values.items()}
    return {policy: of for policy, of in known.items() if len(of) == len(values[policy])}


def judged_goodputs(goodputs: Sequence[Goodput]) -> list[Judged]:
    """Of a sweep."""
    groups: dict[tuple[str, str], dict[str, Goodput]] = {}
    for goodput in goodputs:
        groups.setdefault((goodput.workload, goodput.pool), {})[goodput.policy] = goodput
    found = []
    for (workload, pool), by_policy in groups.items():
        if OURS not in by_policy:
            continue
        for ratio in RATIOS:
            where, at = f"{workload} on {pool}", f"{ratio:.0%}"
            rivals = {p: g.loads_by_seed[ratio] for p, g in by_policy.items() if p != ORACLE}
            if (one := verdict(rivals)) is not None:
                bounds = by_policy[OURS].is_at_least(ratio), by_policy[one.rival].is_at_least(ratio)
                words = _one_bounded(one.words(".3f"), *bounds)
                found.append(Judged("goodput: best or tied", where, at, one.kept, words))
            loads = {p: g.load_by_ratio[ratio] for p, g in by_policy.items()}
            if ORACLE in loads:
                kind = f"goodput: at least {ORACLE_SHARE:.0%} of the oracle's"
                met, words = _by_share(loads[OURS], loads[ORACLE])
                words = _one_bounded(words, by_policy[OURS].is_at_least(ratio), by_policy[ORACLE].is_at_least(ratio))
                found.append(Judged(kind, where, at, met, words))
            if _is_mixed(pool) and (blind := _blind(loads)):
                rival = max(blind, key=lambda policy: blind[policy])
                kind = f"mixed hardware: {MIXED_TIMES:g} times the goodput of who does not know it"
                met, words = _by_times(loads[OURS], blind[rival], rival)
                words = _one_bounded(words, by_policy[OURS].is_at_least(ratio), by_policy[rival].is_at_least(ratio))
                found.append(Judged(kind, where, at, met, words))
    return found


def _one_bounded(words: str, mine: bool, its: bool) -> str:
    """What words on two loads say, if one of them, or each, is only the least that it may be."""
    who = {(True, True): "both", (True, False): OURS, (False, True): "the other"}.get((mine, its))
    return words if who is None else f"{words}; {who} may carry more than the {MOST_LOAD:g} that is tried"


def _by_share(mine: float, its: float) -> tuple[bool, str]:
    """0 of 0 is all there is."""
    share = f"{mine / its:.0%}, " if its else ""
    return mine >= ORACLE_SHARE * its - _ROUNDING, f"{share}{mine:.3f} of {its:.3f}"


def _by_times(mine: float, its: float, rival: str) -> tuple[bool, str]:
    times = f"{mine / its:.2f} times, " if its else ""
    return mine >= MIXED_TIMES * its - _ROUNDING, f"{times}{mine:.3f} to {its:.3f} of {rival}"


def _is_mixed(pool: str) -> bool:
    return len({server.engine for server in parse_pool(pool)}) > 1


def _blind(loads: Mapping[str, float]) -> dict[str, float]:
    """Of those who are known to treat all servers alike. A configuration of one's own may do what it likes."""
    return {p: load for p, load in loads.items() if p != OURS and policy_of(p).knows_hardware is False}
