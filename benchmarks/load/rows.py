"""What a case took: medians over rounds of an Envoy with the picker and one alone, which took turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.load.measuring import Sample


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. CPU is per request, latencies of whole answers. `None`: Envoy alone was not measured.

    Attributes:
        rate: of an open loop, requests/s; 0 is a closed loop, whose latencies are queues and so not compared.
        picker_best_us: of the round that other load on the machine disturbed least.
        picker_busy_ratio, idle_picker_ratio: of one core, under the load and without any.
        reference_ms: of the machine meanwhile, see `measuring.reference_ms`.
        chunks: HTTP chunks per answer as the client got them.
        picker_messages, picker_bytes: what Envoy sent the picker.
    """

    case: str
    rate: float
    requests_per_s: float
    picker_us: float
    picker_best_us: float
    picker_busy_ratio: float
    idle_picker_ratio: float
    reference_ms: float
    envoy_us: float
    chunks: float
    picker_messages: float
    picker_bytes: float
    p50_ms: float
    p99_ms: float
    alone_envoy_us: float | None = None
    alone_requests_per_s: float | None = None
    alone_p50_ms: float | None = None
    alone_p99_ms: float | None = None

    @property
    def added_p50_ms(self) -> float | None:
        return None if self.alone_p50_ms is None or not self.rate else self.p50_ms - self.alone_p50_ms

    @property
    def added_p99_ms(self) -> float | None:
        return None if self.alone_p99_ms is None or not self.rate else self.p99_ms - self.alone_p99_ms


def median(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    return statistics.median(map(figure, samples))


def row_of(
    case: str,
    rate: float,
    idle_ratio: float,
    references_ms: Sequence[float],
    samples: Sequence[Sample],
    alone: Sequence[Sample],
) -> Row:
    row = Row(
        case=case,
        rate=rate,
        requests_per_s=median(samples, lambda sample: sample.requests_per_s),
        picker_us=median(samples, lambda sample: sample.cpu_us["picker"]),
        picker_best_us=min(sample.cpu_us["picker"] for sample in samples),
        picker_busy_ratio=median(samples, lambda sample: sample.busy_ratio["picker"]),
        idle_picker_ratio=idle_ratio,
        reference_ms=statistics.median(references_ms),
        envoy_us=median(samples, lambda sample: sample.cpu_us["envoy"]),
        chunks=median(samples, lambda sample: sample.chunks_per_request),
        picker_messages=median(samples, lambda sample: sample.picker_messages),
        picker_bytes=median(samples, lambda sample: sample.picker_bytes),
        p50_ms=median(samples, lambda sample: sample.result.total_p50_us / 1e3),
        p99_ms=median(samples, lambda sample: sample.result.total_p99_us / 1e3),
    )
    if not alone:
        return row
    return replace(
        row,
        alone_envoy_us=median(alone, lambda sample: sample.cpu_us["envoy"]),
        alone_requests_per_s=median(alone, lambda sample: sample.requests_per_s),
        alone_p50_ms=median(alone, lambda sample: sample.result.total_p50_us / 1e3),
        alone_p99_ms=median(alone, lambda sample: sample.result.total_p99_us / 1e3),
    )


def shown(row: Row) -> Mapping[str, object]:
    return {
        "case": row.case,
        "req/s": round(row.requests_per_s),
        "picker µs": row.picker_us,
        "best": row.picker_best_us,
        "busy": row.picker_busy_ratio,
        "idle": row.idle_picker_ratio,
        "ref ms": row.reference_ms,
        "Envoy µs": row.envoy_us,
        "alone µs": row.alone_envoy_us,
        "messages": row.picker_messages,
        "KB": row.picker_bytes / 1e3,
        "p50 ms": row.p50_ms,
        "p99 ms": row.p99_ms,
        "added p50": row.added_p50_ms,
        "added p99": row.added_p99_ms,
    }
