"""What a run is asked to be: plain values, so that it can be written down, sent to another process and repeated."""

from dataclasses import dataclass

from epp.lab.workloads.workload import Targets
from epp.sim.timing import STEP_NOISE_SIGMA
from epp.units import parse_duration_s

DEFAULT_METRICS_INTERVAL_MS = (50.0, 100.0)
_LEAST_METRICS_INTERVAL_MS = 1.0  # a step of an engine takes several; a run would do nothing else


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run: same spec, same result to the last digit.

    Attributes:
        workload: a name of `WORKLOADS` or `HELD_OUT`, or the path of a trace file.
        pool: as `epp.lab.pools.parse_pool` reads it.
        policy: a name of `POLICIES`, `oracle`, or the path of an EndpointPickerConfig.
        rate_rps: mean arrival rate.
        duration_s: requests arrive for so long; the run goes on until the last has ended.
        warmup_ratio: of the duration, at its beginning: not measured. The predictor learns, caches fill.
        targets: `None`: requests carry none, and those of the workload are measured against.
        metrics_interval_ms: bounds of how often a metrics page is read; `None`: never.
        faults: as `epp.lab.fault_spec` reads them.
        quantile: of the predictor's bounds whose coverage is measured.
        noise_sigma: of the lognormal factor on the duration of each step of an engine; 0: none.
    """

    workload: str
    pool: str
    policy: str
    rate_rps: float
    duration_s: float
    seed: int = 1
    warmup_ratio: float = 0.25
    targets: Targets | None = None
    send_targets: bool = True
    streaming_ratio: float = 1.0
    metrics_interval_ms: tuple[float, float] | None = DEFAULT_METRICS_INTERVAL_MS
    faults: tuple[str, ...] = ()
    quantile: float = 0.9
    noise_sigma: float = STEP_NOISE_SIGMA


def parse_metrics_interval(text: str) -> tuple[float, float] | None:
    """`never`, or a duration such as 500ms. Raises ValueError."""
    if text == "never":
        return None
    interval_ms = parse_duration_s(text) * 1e3
    if interval_ms < _LEAST_METRICS_INTERVAL_MS:
        raise ValueError(f"must be {_LEAST_METRICS_INTERVAL_MS:g}ms or more, or never")
    return interval_ms, interval_ms
