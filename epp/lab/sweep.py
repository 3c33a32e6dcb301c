"""Goodput: the highest rate at which enough requests keep both targets (as DistServe defines it).

Attainment falls as the rate rises. So the highest load that keeps a ratio is found by halving, over a grid of shares of
the knee; between the last that keeps it and the first that does not, the crossing is put by linear interpolation. All
seeds count together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from epp.lab.parallel import Progress, map_in_order
from epp.lab.runs import run_spec, workload_of
from epp.lab.spec import RunSpec

RATIOS = (0.9, 0.99)
GRID = 0.025  # of the knee
MOST_STEPS = 60  # 1.5 of the knee


@dataclass(frozen=True, slots=True)
class Goodput:
    """One policy's goodput on one workload and pool.

    Attributes:
        knee_rps: of workload and pool.
        load_by_ratio: for each ratio of requests that keep their targets, the highest load that does, as a share of the
            knee; 0 if the lowest that was tried does not.
        attainment_by_load: what was measured on the way.
    """

    workload: str
    pool: str
    policy: str
    knee_rps: float
    load_by_ratio: Mapping[float, float]
    attainment_by_load: Mapping[float, float]

    def rate_rps(self, ratio: float) -> float:
        return self.load_by_ratio[ratio] * self.knee_rps

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Task:
    like: RunSpec
    knee_rps: float
    seeds: int
    scale: float


def sweep(
    pairs: Sequence[tuple[str, str]],
    policies: Sequence[str],
    seeds: int,
    knees: Mapping[tuple[str, str], float],
    like: RunSpec,
    jobs: int,
    scale: float = 1.0,
) -> list[Goodput]:
    """The goodput of each policy on each workload and pool. Arguments as of `epp.lab.comparison.specs_of`."""
    tasks = [
        _Task(replace(like, workload=workload, pool=pool, policy=policy), knees[workload, pool], seeds, scale)
        for workload, pool in pairs
        for policy in policies
    ]
    with Progress(len(tasks), "sweeps") as progress:
        return map_in_order(_sweep_one, tasks, jobs, progress)


def _sweep_one(task: _Task) -> Goodput:
    spec, measured = task.like, dict[int, float]()
    duration_s = spec.duration_s or task.scale * workload_of(spec.workload).run_s

    def attainment(step: int) -> float:
        if step not in measured:
            rate_rps = step * GRID * task.knee_rps
            runs = [
                run_spec(replace(spec, rate_rps=rate_rps, duration_s=duration_s, seed=seed))
                for seed in range(1, task.seeds + 1)
            ]
            measured[step] = fmean(run.figures["attainment"] or 0.0 for run in runs)
        return measured[step]

    loads = {ratio: highest_load(attainment, ratio) for ratio in RATIOS}
    by_load = {step * GRID: measured[step] for step in sorted(measured)}
    return Goodput(spec.workload, spec.pool, spec.policy, task.knee_rps, loads, by_load)


def highest_load(attainment: Callable[[int], float], ratio: float) -> float:
    """Where `attainment` of a step of the grid falls below `ratio`, by halving and interpolation."""
    low, high = 0, MOST_STEPS + 1  # `low` keeps it, `high` does not, neither is measured to begin with
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if attainment(middle) >= ratio else (low, middle)
    if low in (0, MOST_STEPS):
        return low * GRID
    above, below = attainment(low), attainment(high)
    return (low + (above - ratio) / (above - below)) * GRID
