"""The full table: every policy on every workload, at loads from easy to hopeless."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from epp.lab.comparison import Row, grouped_by_pair
from epp.lab.goals import EASY_LOAD
from epp.lab.oracle import NAME as ORACLE
from epp.lab.policies.catalogue import POLICIES, WORST
from epp.lab.standing import standing_of_goodputs, standing_of_rows
from epp.lab.sweep import RATIOS, Goodput
from epp.lab.text_report import AT_LEAST_IS, grid, load_cell, shown
from epp.lab.workloads.catalogue import WORKLOADS

POOL = "h100x4"
MIXED_POOL = "h100x2+a100x2"
ON_MIXED = "azure-conv"
LOADS = (EASY_LOAD, 0.8, 1.0, 1.2)
SEEDS = 3
SCALE = 0.6  # of the length of runs, so that all of it takes half an hour on two cores
ALL_POLICIES = (*POLICIES, ORACLE)

QUICK_LOADS = (0.8, 1.0)
QUICK_SCALE = 0.4
QUICK_POLICIES = (
    *("ours", "llm-d-default", "lmetric", "cache-aware", "least-requests", "round-robin"),
    *(WORST, ORACLE),
)

_AT_LOADS = (EASY_LOAD, 0.8)
_OWN_KNEE_IS = "Each policy's own knee: what it answers per second when more comes than it can do"


def pairs_on(pool: str | None, workloads: Sequence[str] = tuple(WORKLOADS)) -> tuple[tuple[str, str], ...]:
    """These workloads on that pool. `None`: on that of the table, and azure-conv on mixed hardware, too."""
    if pool is not None:
        return tuple((name, pool) for name in workloads)
    on_mixed = [(ON_MIXED, MIXED_POOL)] if ON_MIXED in workloads else []
    return (*((name, POOL) for name in workloads), *on_mixed)


def summary(rows: Sequence[Row], markdown: bool) -> str:
    """One table for each workload and pool: what each policy attains at each load, and its latencies. Then where `ours`
    stands."""
    tables = [_one(group, markdown) for group in grouped_by_pair(rows)]
    return "\n\n".join([*tables, *standing_of_rows(rows, markdown)])


def _one(rows: Sequence[Row], markdown: bool) -> str:
    loads = sorted({row.load for row in rows})
    detailed = [load for load in loads if load in _AT_LOADS] or loads[:1]
    head = ["policy", *(f"attained at {load:g}" for load in loads)]
    with_regret = loads if any(row.figures.get("regret_attainment") is not None for row in rows) else []
    head += [f"regret at {load:g}" for load in with_regret]
    for load in detailed:
        head += [f"TTFT p50 at {load:g}", "p99", "TPOT p99", "hits"]
    by_policy: dict[str, dict[float, Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, {})[row.load] = row
    body = []
    for policy, by_load in by_policy.items():
        line = [policy, *(_figure(by_load.get(load), "attainment", ".1%") for load in loads)]
        line += [_figure(by_load.get(load), "regret_attainment", "+.1%") for load in with_regret]
        for load in detailed:
            at = by_load.get(load)
            line += [_figure(at, "ttft_p50_ms", ".0f"), _figure(at, "ttft_p99_ms", ".0f")]
            line += [_figure(at, "tpot_p99_ms", ".1f"), _figure(at, "hit_ratio", ".0%")]
        body.append(line)
    return f"{_title(rows[0])}\n\n{grid(head, body, markdown)}"


def _title(row: Row) -> str:
    result, seeds = row.results[0], len(row.results)
    return (
        f"{row.workload} on {row.pool}: knee {result.knee_rps or 0.0:.3g} rps; "
        f"targets: TTFT {result.targets.ttft_ms:g} ms, TPOT {result.targets.tpot_ms:g} ms; "
        f"{result.spec.duration_s:g} s, {seeds} seed{'' if seeds == 1 else 's'}"
    )


def _figure(row: Row | None, figure: str, how: str) -> str:
    return shown(None if row is None else row.figures.get(figure), how)


def goodput_table(goodputs: Iterable[Goodput], markdown: bool) -> str:
    """Policies by workloads: the goodput at each ratio and the own knee, as shares of the knee. Then as `summary`."""
    goodputs = list(goodputs)
    pairs = list(dict.fromkeys((g.workload, g.pool) for g in goodputs))
    by_policy: dict[str, dict[tuple[str, str], Goodput]] = {}
    for g in goodputs:
        by_policy.setdefault(g.policy, {})[g.workload, g.pool] = g
    names = [f"{w}{'' if p == POOL else f' on {p}'}" for w, p in pairs]
    several = len(pairs) > 1  # else there is no mean
    head = ["policy", *names, *(["mean"] if several else ())]
    knees = ["1.0 is, rps", *(f"{next(iter(by_policy.values()))[pair].knee_rps:.3g}" for pair in pairs)]
    knees += [""] if several else []
    tables = []
    for ratio in RATIOS:
        body = []
        for policy, by_pair in by_policy.items():
            found = [by_pair[pair] for pair in pairs]
            bound = "≥ " if any(g.is_at_least(ratio) for g in found) else ""
            mean = [f"{bound}{fmean(g.load_by_ratio[ratio] for g in found):.3f}"] if several else []
            body.append([policy, *(load_cell(g, ratio) for g in found), *mean])
        note = f" ({AT_LEAST_IS})" if any(g.is_at_least(ratio) for g in goodputs) else ""
        tables.append(
            f"Goodput at {ratio:.0%}: load, as a share of the knee{note}\n\n{grid(head, [*body, knees], markdown)}"
        )
    body = []
    for policy, by_pair in by_policy.items():
        shares = [by_pair[pair].own_knee for pair in pairs]
        mean = [f"{fmean(shares):.2f}"] if several else []
        body.append([policy, *(f"{share:.2f}" for share in shares), *mean])
    tables.append(f"{_OWN_KNEE_IS}, as a share of the knee\n\n{grid(head, [*body, knees], markdown)}")
    return "\n\n".join([*tables, *standing_of_goodputs(goodputs, markdown)])
