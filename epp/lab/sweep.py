"""What a policy can carry: its goodput, the highest rate at which enough requests keep both targets (as DistServe
defines it), and its own knee, the rate at which it answers when more comes than it can do.

Attainment falls as the rate rises. So the highest load that keeps a ratio is found by halving, over a grid of shares of
the knee; between the last that keeps it and the first that does not, the crossing is put by linear interpolation. All
seeds count together; a step is given up as soon as the seeds that are left could not change what it decides.

The own knee is read off one run at the highest load of the grid. Whether throughput follows the arrivals at the loads
that are measured anyway would not tell: in runs as short as these it lags behind from half of the knee on, since what
is in flight still grows.

What is needed next follows from what is known, so a sweep is worked out again from its beginning after each run, up to
where it lacks one. So sweeps go on by turns, run by run, on as many processes as there are.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from epp.lab.comparison import cost_of
from epp.lab.parallel import ProgressBar, in_turns
from epp.lab.runs import MOST_REQUESTS, NothingToMeasure, run_spec, workload_of
from epp.lab.spec import RunSpec
from epp.lab.workloads.workload import run_s_at
from epp.lab.yardsticks import spread
from epp.problem import Problem

RATIOS = (0.9, 0.99)
GRID = 0.025  # of the knee
MOST_STEPS = 60
MOST_LOAD = MOST_STEPS * GRID
"""1.5 of the knee: whoever keeps a ratio there may carry more, which is not tried."""

_MOST_HALVINGS = MOST_STEPS.bit_length()  # of one ratio; all ratios begin with the same one
MOST_RUNS = 1 + len(RATIOS) * (_MOST_HALVINGS - 1)
"""Of one sweep, for each seed, to find the goodputs. One more is for the own knee."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """One policy's goodput, and its own knee, on one workload and pool.

    Attributes:
        knee_rps: of workload and pool.
        own_knee_rps: what the policy answers per second in the second half of a run at 1.5 of that, of the first seed.
        load_by_ratio: for each ratio of requests that keep their targets, the highest load that does, as a share of the
            knee; 0 if the lowest at which there was anything to measure does not. `MOST_LOAD` is only the least that it
            may be.
        loads_by_seed: the same of each seed alone, by what was measured on the way to that of all.
        attainment_by_load: what was measured on the way, where it was with all seeds.
        failing_plugins: types of plugins that raised in some run; there should be none.
    """

    workload: str
    pool: str
    policy: str
    knee_rps: float
    own_knee_rps: float
    load_by_ratio: Mapping[float, float]
    loads_by_seed: Mapping[float, Sequence[float]]
    attainment_by_load: Mapping[float, float]
    failing_plugins: Sequence[str]

    @property
    def spread_by_ratio(self) -> dict[float, float]:
        """Standard deviation over the seeds; 0 of one."""
        return {r: spread(loads) for r, loads in self.loads_by_seed.items()}

    @property
    def own_knee(self) -> float:
        """As a share of the knee."""
        return self.own_knee_rps / self.knee_rps

    def is_at_least(self, ratio: float) -> bool:
        """Whether the highest load that is tried keeps it, so that the policy may carry more."""
        return self.load_by_ratio[ratio] >= MOST_LOAD

    def rate_rps(self, ratio: float) -> float:
        return self.load_by_ratio[ratio] * self.knee_rps

    def plain(self) -> dict[str, Any]:
        """For JSON. Where `at_least_by_ratio` says so, the load is only the least that it may be."""
        return {**asdict(self), "at_least_by_ratio": {ratio: self.is_at_least(ratio) for ratio in self.load_by_ratio}}


@dataclass(frozen=True, slots=True)
class _Task:
    like: RunSpec
    knee_rps: float
    seeds: int
    scale: float

    @property
    def run_cost(self) -> float:
        """About that of each of its runs for goodput, to tell the time that is left: that of the first."""
        rate_rps = self.knee_rps * MOST_LOAD / 2
        duration_s = self.like.duration_s or run_s_at(workload_of(self.like.workload), rate_rps, self.scale)
        return cost_of(self.like.policy, rate_rps * duration_s)


def sweep(
    pairs: Sequence[tuple[str, str]],
    policies: Sequence[str],
    seeds: int,
    knees: Mapping[tuple[str, str], float],
    like: RunSpec,
    jobs: int,
    scale: float = 1.0,
) -> list[Goodput]:
    """The goodput of each policy on each workload and pool. Arguments as of `epp.lab.comparison.specs_of`. Raises
    `Problem`."""
    tasks = [
        _Task(replace(like, workload=workload, pool=pool, policy=policy), knees[workload, pool], seeds, scale)
        for workload, pool in pairs
        for policy in policies
    ]
    for task in tasks:
        _require_possible(task)
    cost = sum(_cost(_Measured(task).overload()) + MOST_RUNS * seeds * task.run_cost for task in tasks)
    with ProgressBar((1 + MOST_RUNS * seeds) * len(tasks), "runs at most", cost=cost) as progress:
        return in_turns(_run, [_sweep_one(task, progress) for task in tasks], jobs, progress, _cost)


def _require_possible(task: _Task) -> None:
    """What would be known after minutes is said before."""
    like = task.like
    rate_rps = task.knee_rps * MOST_LOAD
    duration_s = like.duration_s or run_s_at(workload_of(like.workload), rate_rps, task.scale)
    if rate_rps * duration_s > MOST_REQUESTS:
        raise Problem(
            f"{like.workload}: runs of {duration_s:g} s, at up to {rate_rps:.3g} rps, are of more than "
            f"{MOST_REQUESTS:,} requests; say a lower {'--duration' if like.duration_s else '--scale'}"
        )


def _cost(spec: RunSpec) -> float:
    return cost_of(spec.policy, spec.rate_rps * spec.duration_s)


class _Ran(NamedTuple):
    attainment: float | None  # nothing was there to measure
    throughput_rps: float
    failing_plugins: Sequence[str]


def _run(spec: RunSpec) -> _Ran:
    try:
        result = run_spec(spec)
    except NothingToMeasure:
        return _Ran(None, 0.0, ())
    figures = result.figures
    return _Ran(figures["attainment"], figures["throughput_rps"] or 0.0, tuple(result.plugin_failures))


class _Lacking(Exception):
    """This run has to be made first, at this step of the grid."""

    def __init__(self, step: int, spec: RunSpec) -> None:
        self.step, self.spec = step, spec


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


class _Measured:
    """Attainment at steps of the grid, by seed; `None` where nothing was there to measure, which says nothing. What is
    not known yet is raised as `_Lacking`."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._workload = workload_of(task.like.workload)
        self.by_step: dict[int, list[float | None]] = {}

    def at(self, step: int) -> float:
        """Mean of all seeds that show anything."""
        values = self.by_step.get(step, [])
        if len(values) < self._task.seeds:
            raise self._lacking(step)
        shown = _known(values)
        if not shown:
            raise self._nothing(step)
        return fmean(shown)

    def keeps(self, step: int, ratio: float) -> bool:
        """Whether that is `ratio` at least. Stops where the seeds that are left cannot make it so any more."""
        values = self.by_step.get(step, [])
        shown, left = _known(values), self._task.seeds - len(values)
        if left and sum(shown) + left >= ratio * (len(shown) + left):
            raise self._lacking(step)
        if not left and not shown:
            if not any(_known(others) for other, others in self.by_step.items() if other > step):
                raise self._nothing(step)
            return False  # a higher load does not keep it, and of lower ones still less will be there
        return not left and fmean(shown) >= ratio

    def _nothing(self, step: int) -> NothingToMeasure:
        spec = self._spec_at(step, 1, self._task.scale)
        longer = "--duration" if self._task.like.duration_s else "--scale"
        return NothingToMeasure(
            f"{spec.workload}: at {step * GRID:g} of the knee ({spec.rate_rps:.3g} rps) nothing to measure arrives in "
            f"{spec.duration_s:.3g} s; say a higher {longer}"
        )

    def _lacking(self, step: int) -> _Lacking:
        """The next seed there."""
        return _Lacking(step, self._spec_at(step, len(self.by_step.get(step, [])) + 1, self._task.scale))

    def overload(self) -> RunSpec:
        """Of the first seed, and as long as what the pool's knee is measured by: in less, queues hardly stand."""
        return self._spec_at(MOST_STEPS, 1, 1.0)

    def _spec_at(self, step: int, seed: int, scale: float) -> RunSpec:
        like, rate_rps = self._task.like, step * GRID * self._task.knee_rps
        duration_s = like.duration_s or run_s_at(self._workload, rate_rps, scale)
        return replace(like, rate_rps=rate_rps, duration_s=duration_s, seed=seed)

    def load_of_seed(self, number: int, ratio: float) -> float:
        """As `highest_load` among the steps that were measured with this seed."""
        at = {
            step: value
            for step, values in self.by_step.items()
            if len(values) > number and (value := values[number]) is not None
        }
        low = max((step for step, value in at.items() if value >= ratio), default=0)
        high = min((step for step in at if step > low), default=None)
        if low == 0 or high is None:
            return low * GRID
        return (low + (high - low) * (at[low] - ratio) / (at[low] - at[high])) * GRID


def _sweep_one(task: _Task, progress: ProgressBar) -> Generator[RunSpec, _Ran, Goodput]:
    measured, runs = _Measured(task), 0
    overloaded = yield measured.overload()  # the dearest first: who asks for too much is told so at once
    if overloaded.attainment is None:
        or_streamed = ", or a higher --streamed" if task.like.streaming_ratio < 1.0 else ""
        raise NothingToMeasure(
            f"{task.like.workload}: nothing to measure arrives even at {MOST_LOAD:g} of the knee; "
            f"say a longer --duration{or_streamed}"
        )
    failing = set(overloaded.failing_plugins)
    while True:
        try:
            loads = {ratio: highest_load(measured.at, ratio, measured.keeps) for ratio in RATIOS}
            break
        except _Lacking as lacking:
            ran = yield lacking.spec
            measured.by_step.setdefault(lacking.step, []).append(ran.attainment)
            failing.update(ran.failing_plugins)
            runs += 1
    progress.less(MOST_RUNS * task.seeds - runs, task.run_cost)
    spec = task.like
    by_seed = {ratio: tuple(measured.load_of_seed(n, ratio) for n in range(task.seeds)) for ratio in RATIOS}
    whole = {
        step: fmean(shown)
        for step, values in sorted(measured.by_step.items())
        if len(values) == task.seeds and (shown := _known(values))
    }
    by_load = {step * GRID: value for step, value in whole.items()}
    return Goodput(
        spec.workload,
        spec.pool,
        spec.policy,
        task.knee_rps,
        overloaded.throughput_rps,
        loads,
        by_seed,
        by_load,
        sorted(failing),
    )


def highest_load(
    attainment: Callable[[int], float], ratio: float, keeps: Callable[[int, float], bool] | None = None
) -> float:
    """Where `attainment` of a step of the grid falls below `ratio`, by halving and interpolation. `keeps` says whether
    it does not, if that is cheaper to know."""
    low, high = 0, MOST_STEPS + 1  # `low` keeps it, `high` does not, neither is measured to begin with
    while high - low > 1:
        middle = (low + high) // 2
        kept = attainment(middle) >= ratio if keeps is None else keeps(middle, ratio)
        low, high = (middle, high) if kept else (low, middle)
    if low in (0, MOST_STEPS):
        return low * GRID
    above, below = attainment(low), attainment(high)
    return (low + (above - ratio) / (above - below)) * GRID
