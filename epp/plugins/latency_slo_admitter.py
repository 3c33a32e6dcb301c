"""Sheddable requests that nobody can serve in time are refused at once, instead of making others late."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from epp.plugins._compatibility import CompatibleParameters
from epp.plugins._signals import fresh
from epp.plugins._slo import slo_of
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle, Observation
from epp.scheduling.data import LATENCY_PREDICTION, DataKey, LatencyPrediction
from epp.scheduling.decision import Denial
from epp.scheduling.plugin import Admitter, Services

COLD_KV_CACHE_RATIO = 0.02
"""llm-d's: a server that uses less of its cache has nothing to do to speak of."""

DENIED = "no server is predicted to meet the latency targets of this sheddable request"


class LatencySloAdmitterParameters(CompatibleParameters):
    latency_prediction_info_producer_name: str = Field(
        "", description="Whose predictions to read; empty: the default producer."
    )


class LatencySloAdmitter(Admitter):
    """Refuses a request, with 429 and Retry-After, if all of this holds:

    its priority is below 0; it states a target; there are predictions, and by none of them all targets would be met;
    no server is idle (nothing of ours is in flight there, and it does not say it runs anything), and none says that it
    uses less than 2 % of its KV cache.

    Like llm-d: idle is who says that it runs nothing, however old that word is.
    """

    plugin_type = "latency-slo-admitter"
    parameters_model = LatencySloAdmitterParameters

    def __init__(self, name: str, parameters: LatencySloAdmitterParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._like_llm_d = parameters.like_llm_d
        self._key = LATENCY_PREDICTION.by(parameters.latency_prediction_info_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def admit(self, cycle: Cycle, candidates: Candidates) -> Denial | None:
        prediction = cycle.get(self._key)
        if cycle.request.priority >= 0 or prediction is None or not slo_of(cycle.request.headers).constrained:
            return None
        rows = candidates.rows
        if not prediction.known[rows].any() or prediction.ok[rows].any():
            return None
        if self._someone_is_idle(cycle, candidates, prediction):
            return None
        cycle.observations.append(Observation("admission_denied", 1.0, self.name, self.plugin_type))
        return Denial.saturated(DENIED)

    def _someone_is_idle(self, cycle: Cycle, candidates: Candidates, prediction: LatencyPrediction) -> bool:
        snapshot = candidates.snapshot
        running, kv_cache = snapshot.running_requests, snapshot.kv_cache_usage_ratio
        if self._like_llm_d:
            running, kv_cache = candidates.take(running), candidates.take(kv_cache)
            idle = running == 0
        else:
            running, kv_cache = fresh(running, candidates, cycle.now_s), fresh(kv_cache, candidates, cycle.now_s)
            idle = (candidates.take(prediction.requests) == 0) & ~(running > 0)
        return bool((idle | (kv_cache < COLD_KV_CACHE_RATIO)).any())
