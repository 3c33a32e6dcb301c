"""Policies side by side: the same workload, pool, rate and seeds for each, and what the seeds come to together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from epp.lab.oracle import NAME as ORACLE
from epp.lab.parallel import ProgressBar, map_in_order
from epp.lab.policies.catalogue import POLICIES
from epp.lab.result import Result
from epp.lab.runs import knee_of, run_spec, workload_of
from epp.lab.spec import RunSpec
from epp.lab.workloads.workload import run_s_at
from epp.lab.yardsticks import spread

DEFAULT_POLICIES = ("ours", "llm-d-default", "lmetric", "cache-aware", "least-requests", "round-robin", ORACLE)

# Of a run, in runs of a policy that does not learn: three rules and a look into every engine for each request, and laws
# and trees that are fitted and asked. They are 4 to 8, and 3 to 5, by load and workload.
_ORACLE_COST, _LEARNING_COST = 6.0, 4.0


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one load of one workload and pool, over all seeds.

    Attributes:
        figures: means over the seeds of those that have one, `regret_attainment` and `regret_ttft_mean_ms` among them:
            what the oracle keeps more on the same schedules, and how much sooner its first tokens come on average.
        spreads: standard deviations over the seeds, as in `epp.lab.yardsticks.spread`.
    """

    workload: str
    pool: str
    load: float
    policy: str
    results: tuple[Result, ...]
    figures: Mapping[str, float | None]
    spreads: Mapping[str, float | None]

    @property
    def shares(self) -> dict[str, float]:
        """Of the requests, by server: means over the seeds."""
        names = self.results[0].servers
        return {name: fmean(r.servers[name]["share"] or 0.0 for r in self.results) for name in names}


def specs_of(
    workloads: Iterable[tuple[str, str]],
    policies: Iterable[str],
    loads: Iterable[float],
    seeds: int,
    knees: Mapping[tuple[str, str], float],
    like: RunSpec,
    scale: float = 1.0,
) -> list[RunSpec]:
    """Every combination; what they share is in `like`. Runs last as long as their workload asks for, times `scale`,
    unless `like` has a duration."""
    policies, loads = list(policies), list(loads)
    return [
        replace(
            like,
            workload=workload,
            pool=pool,
            policy=policy,
            rate_rps=load * knees[workload, pool],
            duration_s=like.duration_s or run_s_at(workload_of(workload), load * knees[workload, pool], scale),
            seed=seed,
        )
        for workload, pool in workloads
        for load in loads
        for policy in policies
        for seed in range(1, seeds + 1)
    ]


def knees_of(pairs: Sequence[tuple[str, str]], jobs: int) -> dict[tuple[str, str], float]:
    """The knee of each workload and pool. Raises `Problem`."""
    pairs = list(dict.fromkeys(pairs))
    with ProgressBar(len(pairs), "knees found") as progress:
        return dict(zip(pairs, map_in_order(_knee, pairs, jobs, progress), strict=True))


def _knee(pair: tuple[str, str]) -> float:
    return knee_of(*pair)


def compare(specs: Sequence[RunSpec], knees: Mapping[tuple[str, str], float], jobs: int) -> list[Row]:
    """Run them all. Raises `Problem`."""
    tasks = [(spec, knees.get((spec.workload, spec.pool))) for spec in specs]
    with ProgressBar(len(tasks), "runs", cost=sum(map(_cost, tasks))) as progress:
        results = map_in_order(_run, tasks, jobs, progress, _begins, _cost)
    return rows_of(results)


def _begins(task: tuple[RunSpec, float | None]) -> tuple[float, int]:
    """The dearest first; then what shares a schedule, which is kept from run to run."""
    return -_cost(task), task[0].seed


def _cost(task: tuple[RunSpec, float | None]) -> float:
    spec, _ = task
    return cost_of(spec.policy, spec.rate_rps * spec.duration_s)


def cost_of(policy: str, requests: float) -> float:
    """Of a run, in requests of a policy that does not learn: what the time left is told by."""
    if policy == ORACLE:
        return _ORACLE_COST * requests
    known = POLICIES.get(policy)
    return (_LEARNING_COST if known is not None and known.knows_hardware else 1.0) * requests


def _run(task: tuple[RunSpec, float | None]) -> Result:
    return run_spec(*task)


def rows_of(results: Iterable[Result]) -> list[Row]:
    """One row for all seeds of what is otherwise the same, in the order in which they first come."""
    together: dict[tuple[str, str, float, str], list[Result]] = {}
    for result in results:
        spec = result.spec
        together.setdefault((spec.workload, spec.pool, spec.rate_rps, spec.policy), []).append(result)
    rows = []
    for (workload, pool, rate_rps, policy), group in together.items():
        oracle = together.get((workload, pool, rate_rps, ORACLE), [])
        with_regret = [dict(r.figures) | _regret(r, oracle) for r in group]
        load = rate_rps / group[0].knee_rps if group[0].knee_rps else rate_rps
        figures = {name: _over(fmean, with_regret, name) for name in with_regret[0]}
        spreads = {name: _over(spread, with_regret, name) for name in with_regret[0]}
        rows.append(Row(workload, pool, round(load, 6), policy, tuple(group), figures, spreads))
    return rows


def grouped_by_pair(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one workload and pool together, in the order in which they first come."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.pool), []).append(row)
    return list(groups.values())


def grouped_by_load(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one workload, pool and load together, in the order in which they first come."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.pool, row.load), []).append(row)
    return list(groups.values())


def _regret(result: Result, oracle: Sequence[Result]) -> dict[str, float | None]:
    best = next((o for o in oracle if o.spec.seed == result.spec.seed), None)
    names = {"regret_attainment": ("attainment", -1.0), "regret_ttft_mean_ms": ("ttft_mean_ms", 1.0)}
    regret: dict[str, float | None] = {}
    for name, (of, sign) in names.items():
        mine, its = result.figures[of], None if best is None else best.figures[of]
        regret[name] = None if mine is None or its is None else sign * (mine - its)
    return regret


def _over(
    what: Callable[[list[float]], float], figures: Sequence[Mapping[str, float | None]], name: str
) -> float | None:
    values = [value for f in figures if (value := f.get(name)) is not None]
    return what(values) if values else None
