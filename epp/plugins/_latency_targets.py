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

    A sorted list per endpoint, of which the lowest counts. Requests without a target are not in it. Of what other
    processes have sent, only each one's lowest is known.
    """

    def __init__(self) -> None:
        self._targets_ms: dict[str, list[float]] = {}
        self._by_peer: dict[int, dict[str, float]] = {}
        self._lowest_ms: dict[str, float] = {}  # over all

    def add(self, endpoint_id: str, target_ms: float) -> bool:
        """Returns whether this is now the lowest of our own."""
        targets_ms = self._targets_ms.setdefault(endpoint_id, [])
        insort(targets_ms, target_ms)
        return self._follow(endpoint_id, targets_ms[0] == target_ms and targets_ms[1:2] != [target_ms])

    def remove(self, endpoint_id: str, target_ms: float) -> bool:
        """Take out, once, what was added. Returns whether the lowest of our own has changed."""
        targets_ms = self._targets_ms[endpoint_id]
        del targets_ms[bisect_left(targets_ms, target_ms)]
        changed = not targets_ms or (target_ms < targets_ms[0])
        if not targets_ms:
            del self._targets_ms[endpoint_id]
        return self._follow(endpoint_id, changed)

    def own_lowest_ms(self, endpoint_id: str) -> float | None:
        """Of our own; `None`: there are none."""
        targets_ms = self._targets_ms.get(endpoint_id)
        return None if targets_ms is None else targets_ms[0]

    def peer_lowest(self, peer: int, endpoint_id: str, lowest_ms: float | None) -> None:
        """Of another process."""
        theirs = self._by_peer.setdefault(peer, {})
        if lowest_ms is None:
            theirs.pop(endpoint_id, None)
        else:
            theirs[endpoint_id] = lowest_ms
        self._follow(endpoint_id, True)

    def forget_peer(self, peer: int) -> None:
        for endpoint_id in self._by_peer.pop(peer, {}):
            self._follow(endpoint_id, True)

    def lowest_ms(self) -> Mapping[str, float]:
        """The strictest target on each endpoint that has any."""
        return self._lowest_ms

    def limits_ms(self, snapshot: Snapshot, target_ms: float) -> FloatArray:
        """Per endpoint the lower of `target_ms` and the strictest that runs there."""
        limits_ms = np.full(len(snapshot), target_ms)
        for endpoint_id, lowest_ms in self._lowest_ms.items():
            row = snapshot.row_by_id.get(endpoint_id)
            if row is not None and 0 < lowest_ms < target_ms:
                limits_ms[row] = lowest_ms
        return limits_ms

    def _follow(self, endpoint_id: str, changed: bool) -> bool:
        if changed:
            ours = self.own_lowest_ms(endpoint_id)
            known = [] if ours is None else [ours]
            known += [theirs[endpoint_id] for theirs in self._by_peer.values() if endpoint_id in theirs]
            if known:
                self._lowest_ms[endpoint_id] = min(known)
            else:
                self._lowest_ms.pop(endpoint_id, None)
        return changed


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
        ttft_headroom_ms = tpot_headroom_ms = None
        known = ttft_ms == ttft_ms
        ok = known
        if ttft_target_ms is not None:
            ttft_headroom_ms = (ttft_target_ms - (0.0 if self.like_llm_d else waited_ms)) - ttft_ms
            ok = ttft_headroom_ms > 0  # which NaN is not
        judges_tpot = tpot_target_ms is not None and streams and Target.TPOT in ready
        if tpot_target_ms is not None and judges_tpot:
            limits_ms = self.running.limits_ms(snapshot, tpot_target_ms) * self.slo_buffer_factor
            tpot_headroom_ms = limits_ms - tpot_ms
            known_tpot, ok_tpot = tpot_ms == tpot_ms, tpot_headroom_ms > 0
            if np.count_nonzero(only_prefills):
                tpot_headroom_ms = np.where(only_prefills, np.nan, tpot_headroom_ms)
                known_tpot, ok_tpot = only_prefills | known_tpot, only_prefills | ok_tpot
            known = known & known_tpot
            ok = ok & ok_tpot
        return LatencyPrediction(
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            ttft_headroom_ms=nothing(size) if ttft_headroom_ms is None else ttft_headroom_ms,
            tpot_headroom_ms=nothing(size) if tpot_headroom_ms is None else tpot_headroom_ms,
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
    if not streams and e2e is not None and Target.E2E in ready and _covers(e2e, ttft_ms):
        return e2e.bound_ms, nothing(len(ttft_ms))
    return (
        ttft_ms if Target.TTFT in ready else nothing(len(ttft_ms)),
        prediction.tpot.bound_ms if Target.TPOT in ready else nothing(len(ttft_ms)),
    )


def nothing(size: int) -> FloatArray:
    """NaN for everyone. `np.full` takes five times as long."""
    column = np.empty(size)
    column.fill(np.nan)
    return column


def _covers(estimate: Estimate, other_ms: FloatArray) -> bool:
    """It has a prediction for every row for which there is another, and for any row at all."""
    missing = np.isnan(estimate.bound_ms)
    return not missing.all() and bool((missing <= np.isnan(other_ms)).all())


def spread(values: FloatArray, rows: IntArray, size: int) -> FloatArray:
    """Values of some rows, in the order of the whole snapshot; NaN elsewhere."""
    if len(rows) == size:
        return values
    column = nothing(size)
    column[rows] = values
    return column
