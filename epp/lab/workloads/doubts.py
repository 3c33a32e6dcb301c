"""What makes the figures of a replayed trace doubtful, in words for whoever replays it.

In a run of seconds queues have no time to grow, so all policies look good. And pauses are replayed with the rest, while
the rate is that of the whole trace: between them more comes than it says.
"""

from collections.abc import Sequence
from itertools import pairwise

from epp.lab.workloads.traces import Trace

LEAST_RUN_S = 60.0
PAUSE_RATIO = 0.1
"""So much of a trace without a request is a pause. In bursty traffic (azure-code) the longest gap is half of that."""
PAUSE_GAPS = 20.0
"""And so many times the mean gap: of few requests each gap is a good part of the trace."""


def doubts(trace: Trace, rates_rps: Sequence[float]) -> list[str]:
    """One line per doubt about replaying all of this trace at these rates; at best none."""
    return [doubt for doubt in (_short(trace, max(rates_rps)), _paused(trace)) if doubt is not None]


def _short(trace: Trace, rate_rps: float) -> str | None:
    requests, enough = len(trace.rows), LEAST_RUN_S * rate_rps
    if requests >= enough:
        return None
    return (
        f"at {rate_rps:.3g} rps its {requests:,} requests are over in {requests / rate_rps:.3g} s; in less than "
        f"{LEAST_RUN_S:g} s queues have no time to grow, and all policies look good: record {enough:,.0f} or more, or "
        "go by a lower load or rate"
    )


def _paused(trace: Trace) -> str | None:
    lasts_s = trace.rows[-1].at_s
    gaps_s = [later.at_s - row.at_s for row, later in pairwise(trace.rows)]
    least_s = max(PAUSE_RATIO * lasts_s, PAUSE_GAPS * lasts_s / max(len(gaps_s), 1))
    pauses_s = [gap_s for gap_s in gaps_s if gap_s >= least_s > 0.0]
    if not pauses_s:
        return None
    return (
        f"{sum(pauses_s) / lasts_s:.0%} of it are pauses, the longest {max(pauses_s):,.0f} s of {lasts_s:,.0f} (gaps "
        f"of {PAUSE_RATIO:.0%} or more count); they are replayed, so the rest comes faster than the rate says, and the "
        "knee is too low: record anew, into a new file, or cut them out"
    )
