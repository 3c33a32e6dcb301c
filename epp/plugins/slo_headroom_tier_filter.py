"""Servers that are predicted to miss the request's targets are left out while others are not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.plugins._compatibility import CompatibleParameters
from epp.plugins._slow_start import without_held_back
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import LATENCY_PREDICTION, SLOW_START, DataKey
from epp.scheduling.plugin import Filter, Services


class SloHeadroomTierParameters(CompatibleParameters):
    epsilon_explore_neg: float = Field(
        0.01, ge=0, le=1, description="Share of requests that go to those predicted to miss, to learn from them."
    )
    latency_prediction_info_producer_name: str = Field(
        "", description="Whose predictions to read; empty: the default producer."
    )


class SloHeadroomTierFilter(Filter):
    """Two tiers: those that would meet the targets, and those that would miss one. The first stays.

    With probability epsilonExploreNeg it is the second. A server without a prediction is in neither tier: it stays with
    the first. If only one tier has a member, or the request has no target, all stay.

    New and failing servers have their turn first (see predicted-latency-producer).

    Like llm-d: a server without a prediction is in the second tier, and a headroom of 0 ms in the first.
    """

    plugin_type = "slo-headroom-tier-filter"
    parameters_model = SloHeadroomTierParameters

    def __init__(self, name: str, parameters: SloHeadroomTierParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._epsilon = parameters.epsilon_explore_neg
        self._like_llm_d = parameters.like_llm_d
        self._key = LATENCY_PREDICTION.by(parameters.latency_prediction_info_producer_name)
        self._slow_start_key = SLOW_START.by(parameters.latency_prediction_info_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        if not self._like_llm_d:
            candidates = without_held_back(cycle, candidates, self._slow_start_key)
        prediction, rows = cycle.get(self._key), candidates.rows
        if prediction is None or len(candidates) <= 1:
            return candidates
        known = candidates.take(prediction.known)
        if self._like_llm_d:
            misses = (prediction.ttft_headroom_ms[rows] < 0) | (prediction.tpot_headroom_ms[rows] < 0) | ~known
            meets = ~misses
            if not known.any():
                return candidates
        else:
            meets = candidates.take(prediction.ok)
            if np.count_nonzero(meets) == len(meets):  # as a rule
                return candidates
            misses = known & ~meets
        if not meets.any() or not misses.any():
            return candidates
        if self._epsilon > 0 and cycle.rng.random() < self._epsilon:
            return candidates.where(misses)
        return candidates.where(~misses)

    def drop_reason(self) -> str:
        return "predicted to miss a target"
