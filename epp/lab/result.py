"""What a run comes to: figures, curves and a time line, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epp.lab.experiment import LabResult, Served
from epp.lab.fault_spec import servers_befallen
from epp.lab.pools import parse_pool
from epp.lab.spec import RunSpec
from epp.lab.workloads.workload import Targets
from epp.lab.yardsticks import (
    actual_ms,
    answered_rps,
    attainment,
    between,
    coverage,
    e2e_ms,
    hit_ratio,
    mean,
    percentile,
    pinball_ms,
    relative_errors,
    requests_until_better,
    variation,
)
from epp.latency.types import Target

CURVE_RATIOS = tuple(i / 100 for i in range(1, 101))
TIMELINE_PARTS = 40

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Result:
    """
    Attributes:
        targets: what was measured against, but of requests with targets of their own.
        knee_rps: of workload and pool, if the rate was chosen by it.
        figures: by name; see `figures_of`. Times are in ms.
        curves: of TTFT, TPOT and E2E, the percentiles 1 to 100.
        servers: per server its share of the requests, of the time it computed, and of prompt tokens that were cached.
        timeline: parts of the run, by arrival: when it begins, attainment, median and 0.9 quantile of TTFT, requests.
        befallen: of each server that a fault befell, how many requests it was given in each part of the time line.
        plugin_failures: plugins that raised, by type; there should be none.
    """

    spec: RunSpec
    targets: Targets
    knee_rps: float | None
    figures: Figures
    curves: Mapping[str, Sequence[float | None]]
    servers: Mapping[str, Figures]
    timeline: Sequence[Figures]
    befallen: Mapping[str, Sequence[int]]
    plugin_failures: Mapping[str, int]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        plain = asdict(self)
        plain["targets"] = self.targets._asdict()
        plain["spec"]["targets"] = None if self.spec.targets is None else self.spec.targets._asdict()
        return plain


def result_of(spec: RunSpec, targets: Targets, knee_rps: float | None, lab: LabResult) -> Result:
    end_s = spec.duration_s
    measured = measured_of(spec, lab.served)
    names = sorted(lab.busy_s)
    return Result(
        spec=spec,
        targets=targets,
        knee_rps=knee_rps,
        figures=figures_of(measured, targets, spec.quantile)
        | {
            "imbalance": variation(lab.busy_s.values()),
            "preemptions": float(lab.preemptions),
            "models": float(len(lab.published_s)),
            "throughput_rps": answered_rps(lab.served, end_s / 2, end_s),  # by then queues stand, if any will
        }
        | {f"{target.value}_beats_prior_after": requests_until_better(lab.served, target) for target in Target},
        curves={
            "ttft_ms": _curve(actual_ms(measured, Target.TTFT)),
            "tpot_ms": _curve(actual_ms(measured, Target.TPOT)),
            "e2e_ms": _curve(e2e_ms(measured)),
        },
        servers={name: _server(name, measured, lab) for name in names},
        timeline=_timeline(lab.served, targets, end_s),
        befallen={
            name: [sum(s.server == name for s in part) for part in _parts(lab.served, end_s)]
            for name in servers_befallen(spec.faults, parse_pool(spec.pool))
        },
        plugin_failures=dict(sorted(lab.plugin_failures.items())),
    )


def measured_of(spec: RunSpec, served: Sequence[Served]) -> list[Served]:
    """Those that count: what comes after the warm-up."""
    return between(served, spec.warmup_ratio * spec.duration_s, spec.duration_s)


def figures_of(served: Sequence[Served], targets: Targets, quantile: float) -> dict[str, float | None]:
    """The yardsticks of these requests.

    `attainment`: both targets kept, of all streams; failed and refused ones keep none. `goodput_rps` follows from it in
    a sweep, not from one run. `ttft_mape` and the like are of predictions that were served.
    """
    ttft, tpot, e2e = actual_ms(served, Target.TTFT), actual_ms(served, Target.TPOT), e2e_ms(served)
    figures: dict[str, float | None] = {
        "requests": float(len(served)),
        "failed": float(sum(s.status != 200 for s in served)),
        "attainment": attainment(served, *targets),
        "ttft_attainment": attainment(served, targets.ttft_ms, None),
        "tpot_attainment": attainment(served, None, targets.tpot_ms),
        "hit_ratio": hit_ratio(served),
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2e", e2e)):
        figures[f"{name}_mean_ms"] = mean(values)
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}_ms"] = percentile(values, percent / 100)
    for target in Target:
        figures[f"{target.value}_mape"] = mean(relative_errors(served, target))
        figures[f"{target.value}_pinball_ms"] = pinball_ms(served, target, quantile)
        figures[f"{target.value}_coverage"] = coverage(served, target, quantile)
    return figures


def _curve(values: Sequence[float]) -> list[float | None]:
    ordered = sorted(values)
    return [ordered[max(round(ratio * len(ordered)), 1) - 1] if ordered else None for ratio in CURVE_RATIOS]


def _server(name: str, served: Sequence[Served], lab: LabResult) -> Figures:
    mine = [s for s in served if s.server == name]
    return {
        "share": len(mine) / len(served) if served else None,
        "busy_s": lab.busy_s[name],
        "hit_ratio": hit_ratio(mine),
    }


def _parts(served: Sequence[Served], end_s: float) -> list[list[Served]]:
    """Of the time line, by arrival."""
    parts: list[list[Served]] = [[] for _ in range(TIMELINE_PARTS)]
    for s in served:
        parts[min(int(s.at_s / (end_s / TIMELINE_PARTS)), TIMELINE_PARTS - 1)].append(s)
    return parts


def _timeline(served: Sequence[Served], targets: Targets, end_s: float) -> list[Figures]:
    step_s = end_s / TIMELINE_PARTS
    return [
        {
            "at_s": number * step_s,
            "requests": float(len(part)),
            "attainment": attainment(part, *targets),
            "ttft_p50_ms": percentile(actual_ms(part, Target.TTFT), 0.5),
            "ttft_p90_ms": percentile(actual_ms(part, Target.TTFT), 0.9),
        }
        for number, part in enumerate(_parts(served, end_s))
    ]
