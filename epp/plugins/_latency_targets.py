"""A prediction, held against the targets of the request and of those that run already."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from epp.latency.types import Estimate, Prediction, Target
from epp.plugins._slo import Slo
from epp.pool.snapshot import Snapshot
from epp.scheduling.data import BoolArray, FloatArray, IntArray, LatencyPrediction


class RunningTargets:
    """TPOT targets of the requests that run on each server: a newcomer must not slow its neighbours below theirs.

    A sorted list per endpoint, of which the lowest counts. Requests without a target are not in it.
    """

    def __init__(self) -> None:
        self._targets_ms: dict[str, list[float]] = {}

    def add(self, endpoint_id: str, target_ms: float) -> None:
        insort(self._targets_ms.setdefault(endpoint_id, []), target_ms)

    def remove(self, endpoint_id: str, target_ms: float) -> None:
        """Take out, once, what was added."""
        targets_ms = self._targets_ms[endpoint_id]
        del targets_ms[bisect_left(targets_ms, target_ms)]
        if not targets_ms:
            del self._targets_ms[endpoint_id]

    def lowest_ms(self) -> Mapping[str, float]:
        """The strictest target on each endpoint that has any."""
        return {endpoint_id: targets_ms[0] for endpoint_id, targets_ms in self._targets_ms.items()}

    def limits_ms(self, snapshot: Snapshot, target_ms: float) -> FloatArray:
        """Per endpoint the lower of `target_ms` and the strictest that runs there."""
        limits_ms = np.full(len(snapshot), target_ms)
        for endpoint_id, targets_ms in self._targets_ms.items():
            row = snapshot.row_by_id.get(endpoint_id)
            if row is not None and 0 < targets_ms[0] < target_ms:
                limits_ms[row] = targets_ms[0]
        return limits_ms


@dataclass(frozen=True, slots=True)
class Judge:
    """Says which endpoints are predicted to keep a request within its targets.

    Attributes:
        running: of the requests on each server.
        slo_buffer_factor: multiplies TPOT targets.
        like_llm_d: a target that is missing is one of 0 ms, also for TPOT if the request streams, and the time that was
            spent before the decision does not count.
    """

    running: RunningTargets
    slo_buffer_factor: float
    like_llm_d: bool

    def __call__(
        self,
        prediction: Prediction,
        slo: Slo,
        snapshot: Snapshot,
        rows: IntArray,
        *,
        ready: Set[Target],
        streams: bool,
        only_prefills: BoolArray,
        waited_ms: float,
        requests: FloatArray,
    ) -> LatencyPrediction:
        """
        Args:
            rows: snapshot rows that `prediction` is about, in its order.
            ready: what can be predicted; a target of anything else is no constraint yet.
            only_prefills, requests: per endpoint of the snapshot.
        """
        size = len(snapshot)
        ttft_ms, tpot_ms = first_and_next_ms(prediction, ready, streams=streams)
        ttft_ms, tpot_ms = spread(ttft_ms, rows, size), spread(tpot_ms, rows, size)
        missing_ms = 0.0 if self.like_llm_d else None
        ttft_target_ms = missing_ms if slo.ttft_ms is None else slo.ttft_ms
        tpot_target_ms = missing_ms if slo.tpot_ms is None else slo.tpot_ms
        ttft_headroom_ms = tpot_headroom_ms = np.full(size, np.nan)
        known = ~np.isnan(ttft_ms)
        ok = known
        if ttft_target_ms is not None:
            ttft_headroom_ms = ttft_target_ms - (0.0 if self.like_llm_d else waited_ms) - ttft_ms
            ok = ok & (ttft_headroom_ms > 0)
        judges_tpot = tpot_target_ms is not None and streams and Target.TPOT in ready
        if tpot_target_ms is not None and judges_tpot:
            limits_ms = self.running.limits_ms(snapshot, tpot_target_ms) * self.slo_buffer_factor
            tpot_headroom_ms = np.where(only_prefills, np.nan, limits_ms - tpot_ms)
            known = known & (only_prefills | ~np.isnan(tpot_ms))
            ok = ok & known & (only_prefills | (tpot_headroom_ms > 0))
        return LatencyPrediction(
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            ttft_headroom_ms=ttft_headroom_ms,
            tpot_headroom_ms=tpot_headroom_ms,
            known=known,
            ok=ok,
            ttft_constrained=ttft_target_ms is not None,
            tpot_constrained=judges_tpot,
            requests=requests,
        )


def first_and_next_ms(prediction: Prediction, ready: Set[Target], *, streams: bool) -> tuple[FloatArray, FloatArray]:
    """What the client waits for the first of the answer, and for each further token; NaN where that is not ready.

    The first of an answer that does not stream is its end. Where no end can be predicted its first token stands for it
    on all rows, as the least it can be: never on some of them, which would look fast.
    """
    ttft_ms, e2e = prediction.ttft.bound_ms, prediction.e2e
    nothing = np.full_like(ttft_ms, np.nan)
    if not streams and e2e is not None and Target.E2E in ready and _covers(e2e, ttft_ms):
        return e2e.bound_ms, nothing
    return (
        ttft_ms if Target.TTFT in ready else nothing,
        prediction.tpot.bound_ms if Target.TPOT in ready else nothing,
    )


def _covers(estimate: Estimate, other_ms: FloatArray) -> bool:
    """It has a prediction for every row for which there is another, and for any row at all."""
    missing = np.isnan(estimate.bound_ms)
    return not missing.all() and bool((missing <= np.isnan(other_ms)).all())


def spread(values: FloatArray, rows: IntArray, size: int) -> FloatArray:
    """Values of some rows, in the order of the whole snapshot; NaN elsewhere."""
    if len(rows) == size:
        return values
    column = np.full(size, np.nan)
    column[rows] = values
    return column
