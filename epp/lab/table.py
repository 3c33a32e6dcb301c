"""The full table: every policy on every workload, at loads from easy to hopeless."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from epp.lab.comparison import Row
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import POLICIES
from epp.lab.sweep import RATIOS, Goodput
from epp.lab.text_report import grid, shown
from epp.lab.workloads.catalogue import WORKLOADS

POOL = "h100x4"
MIXED_POOL = "h100x2+a100x2"
PAIRS: tuple[tuple[str, str], ...] = (*((name, POOL) for name in WORKLOADS), ("azure-conv", MIXED_POOL))
LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS = 3
SCALE = 0.6  # of the length of runs, so that all of it takes half an hour on two cores
ALL_POLICIES = (*POLICIES, ORACLE)

QUICK_LOADS = (0.8, 1.0)
QUICK_SCALE = 0.4
QUICK_POLICIES = ("ours", "llm-d-default", "lmetric", "cache-aware", "least-requests", "round-robin")

_AT_LOADS = (0.5, 0.8)


def summary(rows: Sequence[Row], markdown: bool) -> str:
    """One table for each workload and pool: what each policy attains at each load, and its latencies."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.pool), []).append(row)
    return "\n\n".join(_one(group, markdown) for group in groups.values())


def _one(rows: Sequence[Row], markdown: bool) -> str:
    loads = sorted({row.load for row in rows})
    detailed = [load for load in loads if load in _AT_LOADS] or loads[:1]
    head = ["policy", *(f"attained at {load:g}" for load in loads)]
    for load in detailed:
        head += [f"TTFT p50 at {load:g}", "p99", "TPOT p99", "hits"]
    by_policy: dict[str, dict[float, Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, {})[row.load] = row
    body = []
    for policy, by_load in by_policy.items():
        line = [policy, *(_figure(by_load.get(load), "attainment", ".1%") for load in loads)]
        for load in detailed:
            at = by_load.get(load)
            line += [_figure(at, "ttft_p50_ms", ".0f"), _figure(at, "ttft_p99_ms", ".0f")]
            line += [_figure(at, "tpot_p99_ms", ".1f"), _figure(at, "hit_ratio", ".0%")]
        body.append(line)
    return f"{_title(rows[0])}\n\n{grid(head, body, markdown)}"


def _title(row: Row) -> str:
    result = row.results[0]
    return (
        f"{row.workload} on {row.pool}: knee {result.knee_rps or 0.0:.3g} rps; "
        f"targets: TTFT {result.targets.ttft_ms:g} ms, TPOT {result.targets.tpot_ms:g} ms; "
        f"{result.spec.duration_s:g} s, {len(row.results)} seeds"
    )


def _figure(row: Row | None, figure: str, how: str) -> str:
    return shown(None if row is None else row.figures.get(figure), how)


def goodput_table(goodputs: Iterable[Goodput], markdown: bool) -> str:
    """Policies by workloads: the goodput at each ratio, as a share of the knee."""
    goodputs = list(goodputs)
    pairs = list(dict.fromkeys((g.workload, g.pool) for g in goodputs))
    by_policy: dict[str, dict[tuple[str, str], Goodput]] = {}
    for g in goodputs:
        by_policy.setdefault(g.policy, {})[g.workload, g.pool] = g
    head = ["policy", *(f"{w}{'' if p == POOL else f' on {p}'}" for w, p in pairs), "mean"]
    tables = []
    for ratio in RATIOS:
        body = []
        for policy, by_pair in by_policy.items():
            loads = [by_pair[pair].load_by_ratio[ratio] for pair in pairs]
            body.append([policy, *(f"{load:.3f}" for load in loads), f"{fmean(loads):.3f}"])
        knees = ["1.0 is, rps", *(f"{next(iter(by_policy.values()))[pair].knee_rps:.3g}" for pair in pairs), ""]
        tables.append(f"Goodput at {ratio:.0%}: load, as a share of the knee\n\n{grid(head, [*body, knees], markdown)}")
    return "\n\n".join(tables)
