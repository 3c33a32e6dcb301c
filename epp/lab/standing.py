"""Where `ours` stands, below a table or a sweep.

Of several workloads each goal is listed, and how many of each kind are met. Of a single one, of one's own traffic above
all, goals of ours are nobody's business: a line says how `ours` compares. Of one seed nothing is called missed.
"""

from collections.abc import Callable, Sequence

from epp.lab.comparison import Row
from epp.lab.goals import Judged, judged_goodputs, judged_rows
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import POLICIES
from epp.lab.sweep import MOST_LOAD, RATIOS, Goodput
from epp.lab.text_report import grid
from epp.lab.verdict import OURS, verdict

ONE_SEED = "one seed: differences of some per cent mean nothing; --seeds 3 tells which are more than chance"


def standing_of_rows(rows: Sequence[Row], markdown: bool) -> list[str]:
    """Of a table; nothing of nothing."""
    judged = judged_rows(rows)
    one_seed = all(len(row.results) == 1 for row in rows)
    if len({row.workload for row in rows}) > 1:
        return _goals(judged, "load", one_seed, markdown)
    lines = [
        f"{OURS} on {one.where} at {one.at}, {one.kind.partition(' at ')[0].partition(':')[0]}: {one.words}"
        for one in judged
    ]
    return _noted(lines, one_seed)


def standing_of_goodputs(goodputs: Sequence[Goodput], markdown: bool) -> list[str]:
    """Of a sweep; nothing of nothing."""
    one_seed = all(len(loads) == 1 for g in goodputs for loads in g.loads_by_seed.values())
    if len({g.workload for g in goodputs}) > 1:
        return _goals(judged_goodputs(goodputs), "goodput at", one_seed, markdown)
    pools = list(dict.fromkeys(g.pool for g in goodputs))
    lines = [line for pool in pools for line in _carried([g for g in goodputs if g.pool == pool])]
    return _noted(lines, one_seed)


def _noted(lines: Sequence[str], one_seed: bool) -> list[str]:
    return ["\n".join([*lines, ONE_SEED] if one_seed else lines)] if lines else []


def _goals(judged: Sequence[Judged], at: str, one_seed: bool, markdown: bool) -> list[str]:
    """A line for each goal, and a tally by kind: of one seed that would count what may be chance."""
    if not judged:
        return []
    not_met = "one seed" if one_seed else "missed"
    lines = [[one.where, one.at, one.kind, "met" if one.met else not_met, one.words] for one in judged]
    table = grid([OURS, at, "goal", "", "stands"], lines, markdown)
    if one_seed:
        return [table, ONE_SEED]
    by_kind: dict[str, list[bool]] = {}
    for one in judged:
        by_kind.setdefault(one.kind, []).append(one.met)
    tally = [[kind, str(sum(met)), str(met.count(False))] for kind, met in by_kind.items()]
    tally.append(["all", str(sum(one.met for one in judged)), str(sum(not one.met for one in judged))])
    return [table, grid(["goals (tied: within the spread of the seeds)", "met", "missed"], tally, markdown)]


def _carried(group: Sequence[Goodput]) -> list[str]:
    """How much more `ours` carries on one pool than each configuration of one's own, or else than the best other."""
    by_policy = {g.policy: g for g in group}
    mine = by_policy.pop(OURS, None)
    by_policy.pop(ORACLE, None)
    if mine is None or not by_policy:
        return []
    own = [g for policy, g in by_policy.items() if policy not in POLICIES]
    lines = []
    for ratio in RATIOS:
        best = max(by_policy.values(), key=_load_at(ratio))
        lines += [_compared(mine, other, ratio) for other in own or [best]]
    return lines


def _load_at(ratio: float) -> Callable[[Goodput], float]:
    return lambda goodput: goodput.load_by_ratio[ratio]


def _compared(mine: Goodput, other: Goodput, ratio: float) -> str:
    carried, its = mine.load_by_ratio[ratio], other.load_by_ratio[ratio]
    if mine.is_at_least(ratio) and other.is_at_least(ratio):
        return f"{OURS} and {other.policy} carry {MOST_LOAD:g} at {ratio:.0%}, the highest load that is tried, or more"
    if not carried and not its:
        return f"{OURS} and {other.policy} carry nothing at {ratio:.0%}: not even the lowest load that is tried"
    if not carried or not its:
        who, load, nothing = (OURS, carried, other.policy) if carried else (other.policy, its, OURS)
        return f"{who} carries {load:.3f} at {ratio:.0%}, {nothing} nothing"
    if f"{carried:.3f}" == f"{its:.3f}":
        return f"{OURS} and {other.policy} carry the same at {ratio:.0%}: {carried:.3f}"
    less = carried < its
    bound = "at least " if mine.is_at_least(ratio) or other.is_at_least(ratio) else ""
    by = f"{carried:.3f}/{its:.3f} = {bound}{abs(carried / its - 1.0) * 100:.0f} % {'less' if less else 'more'}"
    found = verdict({OURS: mine.loads_by_seed[ratio], other.policy: other.loads_by_seed[ratio]})
    tied = found is not None and found.spread > 0.0 and abs(found.ahead) <= found.spread
    chance = ", which is within the spread of the seeds" if tied else ""
    return f"{OURS} carries {by} than {other.policy} at {ratio:.0%}{chance}"
