"""A request stays with servers that have its prompt cached, unless waiting for them costs more than it saves."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from epp.plugins._compatibility import CompatibleParameters
from epp.plugins._slow_start import without_held_back
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import (
    IN_FLIGHT_LOAD,
    LATENCY_PREDICTION,
    PREFIX_MATCH,
    SLOW_START,
    BoolArray,
    DataKey,
    FloatArray,
)
from epp.scheduling.plugin import Filter, Services

PREDICTED = "latencyPredictor"
THROUGHPUT = "prefillThroughput"


class PrefixCacheAffinityParameters(CompatibleParameters):
    affinity_threshold: float = Field(
        0.80, le=1, description="Matched share from which a server counts as warm; 0 or less switches the filter off."
    )
    exploration_probability: float = Field(0.0, ge=0, le=1, description="Share of requests that all servers may get.")
    max_ttft_penalty_ms: float = Field(
        18_000.0,
        ge=0,
        alias="maxTTFTPenaltyMs",
        description="Longer wait for a warm server that is accepted; 0: any.",
    )
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = Field(
        "prefillThroughput", description="Where TTFT is taken from: predictions, or tokens in flight by throughput."
    )
    peak_prefill_throughput: float = Field(15_928.0, ge=0, description="Tokens per second that a server prefills.")
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")
    latency_prediction_info_producer_name: str = Field(
        "", description="Whose predictions to read; empty: the default producer."
    )
    in_flight_load_producer_name: str = Field("", description="Whose load to read; empty: the default producer.")

    @model_validator(mode="after")
    def _throughput_is_positive_when_used(self) -> Self:
        if self.max_ttft_penalty_ms > 0 and self.ttft_source == THROUGHPUT and self.peak_prefill_throughput <= 0:
            raise ValueError("peakPrefillThroughput must be above 0 when ttftSource is prefillThroughput")
        return self


class PrefixCacheAffinityFilter(Filter):
    """Keeps the servers that have at least affinityThreshold of the prompt cached, if there are any.

    They are let go when the best of them would take over maxTTFTPenaltyMs longer to the first token than the best of
    the others: predicted 9 s here and 3 s there, with a penalty of 5,000 ms, all stay. The prediction covers queue and
    cache; by throughput it is tokens in flight / peakPrefillThroughput, so 159,280 tokens are 10 s.

    Servers without a prediction say nothing about how long anybody takes; if that is all of one side, the request
    stays with the warm ones. Like llm-d: they take for ever, so a warm side without predictions is let go.

    New and failing servers have their turn first (see predicted-latency-producer).
    """

    plugin_type = "prefix-cache-affinity-filter"
    parameters_model = PrefixCacheAffinityParameters

    def __init__(self, name: str, parameters: PrefixCacheAffinityParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._parameters = parameters
        self._match_key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)
        self._prediction_key = LATENCY_PREDICTION.by(parameters.latency_prediction_info_producer_name)
        self._slow_start_key = SLOW_START.by(parameters.latency_prediction_info_producer_name)
        self._load_key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        if self._parameters.max_ttft_penalty_ms == 0:
            return (self._match_key,)
        return self._match_key, self._prediction_key if self._predicts else self._load_key

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        parameters = self._parameters
        if not parameters.like_llm_d:
            candidates = without_held_back(cycle, candidates, self._slow_start_key)
        match = cycle.get(self._match_key)
        if len(candidates) <= 1 or parameters.affinity_threshold <= 0 or match is None:
            return candidates
        explore = parameters.exploration_probability
        if explore > 0 and cycle.rng.random() < explore:
            return candidates
        warm = candidates.take(match.ratio) >= parameters.affinity_threshold
        warm_count = np.count_nonzero(warm)
        if not 0 < warm_count < len(warm) or self._costs_too_much(cycle, candidates, warm):
            return candidates
        return candidates.where(warm)

    def drop_reason(self) -> str:
        return f"less than {self._parameters.affinity_threshold:.0%} of the prompt cached"

    @property
    def _predicts(self) -> bool:
        return self._parameters.ttft_source == PREDICTED

    def _costs_too_much(self, cycle: Cycle, candidates: Candidates, warm: BoolArray) -> bool:
        penalty_ms = self._parameters.max_ttft_penalty_ms
        if penalty_ms == 0:
            return False
        ttft_ms = self._ttft_ms(cycle, candidates)
        if ttft_ms is None:
            return False
        if self._parameters.like_llm_d:
            ttft_ms = np.where(np.isnan(ttft_ms), np.finfo(np.float64).max, ttft_ms)
        # `fmin` leaves out what is not known; a side of which nothing is known is NaN, which is not above anything.
        difference_ms = np.fmin.reduce(ttft_ms[warm]) - np.fmin.reduce(ttft_ms[~warm])
        return bool(difference_ms > penalty_ms)

    def _ttft_ms(self, cycle: Cycle, candidates: Candidates) -> FloatArray | None:
        if self._predicts:
            prediction = cycle.get(self._prediction_key)
            return None if prediction is None else candidates.take(prediction.ttft_ms)
        load = cycle.get(self._load_key)
        if load is None:
            return None
        return candidates.take(load.tokens) / self._parameters.peak_prefill_throughput * 1e3
