"""The outcome of some traffic as a plain-text table: one row per server, and one for all."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from epp.sim.traffic import Result

_ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of some results. `None`: nothing to tell it from."""

    requests: int
    errors: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    prefix_hit_ratio: float | None  # cached prompt tokens over all prompt tokens, where both are known


def summarize(results: Sequence[Result]) -> Summary:
    told = [r.usage for r in results if r.usage.prompt_tokens is not None and r.usage.cached_tokens is not None]
    prompt_tokens = sum(usage.prompt_tokens or 0 for usage in told)
    cached_tokens = sum(usage.cached_tokens or 0 for usage in told)
    ttft_p50_ms, ttft_p99_ms = _percentiles(r.ttft_ms for r in results)
    tpot_p50_ms, tpot_p99_ms = _percentiles(r.tpot_ms for r in results)
    return Summary(
        requests=len(results),
        errors=sum(r.error is not None for r in results),
        ttft_p50_ms=ttft_p50_ms,
        ttft_p99_ms=ttft_p99_ms,
        tpot_p50_ms=tpot_p50_ms,
        tpot_p99_ms=tpot_p99_ms,
        prefix_hit_ratio=cached_tokens / prompt_tokens if prompt_tokens else None,
    )


def render_report(results: Sequence[Result]) -> str:
    """The table, and below it the errors by kind. Requests that no server answered are in the last row only."""
    servers = sorted({r.server for r in results if r.server is not None})
    rows = [_HEADINGS]
    rows += [_row(server, [r for r in results if r.server == server], len(results)) for server in servers]
    rows += [_row("all", results, len(results))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    lines.insert(-1, "-" * len(lines[0]))
    errors = Counter(r.error for r in results if r.error is not None)
    lines += [f"{count} × {error}" for error, count in errors.most_common()]
    return "\n".join(lines)


_HEADINGS: tuple[str, ...] = (
    "server",
    "requests",
    "share",
    "errors",
    "TTFT p50 ms",
    "TTFT p99 ms",
    "TPOT p50 ms",
    "TPOT p99 ms",
    "prefix hits",
)


def _row(name: str, results: Sequence[Result], all_requests: int) -> tuple[str, ...]:
    summary = summarize(results)
    return (
        name,
        str(summary.requests),
        _percent(summary.requests / all_requests if all_requests else None),
        str(summary.errors),
        _ms(summary.ttft_p50_ms),
        _ms(summary.ttft_p99_ms),
        _ms(summary.tpot_p50_ms),
        _ms(summary.tpot_p99_ms),
        _percent(summary.prefix_hit_ratio),
    )


def _percentiles(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    p50, p99 = np.percentile(known, [50, 99])
    return float(p50), float(p99)


def _ms(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.1f}"


def _percent(ratio: float | None) -> str:
    return _ABSENT if ratio is None else f"{ratio:.1%}"
