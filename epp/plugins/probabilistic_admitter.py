"""Sheddable requests are refused by chance, the fuller the pool the more likely."""

import numpy as np
from pydantic import Field

from epp.plugins._compatibility import CompatibleParameters
from epp.plugins._signals import fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle, Observation
from epp.scheduling.decision import Denial
from epp.scheduling.plugin import Admitter, Services

DENIED = "the pool is near saturation; this sheddable request was dropped by chance"


class ProbabilisticAdmitterParameters(CompatibleParameters):
    queue_depth_threshold: float = Field(5.0, gt=0, description="Waiting requests at which a server is full.")
    kv_cache_util_threshold: float = Field(0.8, gt=0, le=1, description="KV cache usage at which a server is full.")
    power: float = Field(5.0, gt=0, description="How late, and then how steeply, refusals set in.")
    k: float = Field(300.0, gt=0, description="Factor of the probability.")


class ProbabilisticAdmitter(Admitter):
    """Refuses a request of priority below 0, with 429 and Retry-After, with probability min(saturation^power · k, 1).

    saturation = mean over servers of max(waiting / queueDepthThreshold, KV usage / kvCacheUtilThreshold). With the
    defaults a pool at 0.2 refuses 0.2^5 · 300 = 9.6 % of them, at 0.25 29 %, and from 0.32 on all.

    A server of which only one of the two is known is judged by that one, and a server of which nothing current is known
    is left out; if that is all of them, nobody is refused. Like llm-d: a server without signals is full.
    """

    plugin_type = "probabilistic-admitter"
    parameters_model = ProbabilisticAdmitterParameters

    def __init__(self, name: str, parameters: ProbabilisticAdmitterParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._parameters = parameters

    def admit(self, cycle: Cycle, candidates: Candidates) -> Denial | None:
        if cycle.request.priority >= 0:
            return None
        saturation = self._saturation(cycle, candidates)
        if saturation <= 0 or cycle.rng.random() >= saturation**self._parameters.power * self._parameters.k:
            return None
        cycle.observations.append(Observation("admission_denied", 1.0, self.name, self.plugin_type))
        return Denial.saturated(DENIED)

    def _saturation(self, cycle: Cycle, candidates: Candidates) -> float:
        parameters, snapshot = self._parameters, candidates.snapshot
        queue = fresh(snapshot.waiting_requests, candidates, cycle.now_s) / parameters.queue_depth_threshold
        cache = fresh(snapshot.kv_cache_usage_ratio, candidates, cycle.now_s) / parameters.kv_cache_util_threshold
        fullness = np.fmax(queue, cache)
        if parameters.like_llm_d:
            return float(np.where(np.isnan(fullness), 1.0, fullness).mean())
        known = fullness[~np.isnan(fullness)]
        return float(known.mean()) if known.size else 0.0
