"""Fewer tokens that we ourselves have in flight on a server, this request's own included, is better."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import IN_FLIGHT_LOAD, UNCACHED_TOKENS, DataKey, FloatArray
from epp.scheduling.plugin import Parameters, Scorer, Services

_DEFAULT_THRESHOLD_TOKENS = 128 * 32768  # llm-d default: 128 requests of a 32k context


class TokenLoadParameters(Parameters):
    queue_threshold_tokens: int = Field(
        _DEFAULT_THRESHOLD_TOKENS, description="Tokens at which a server scores 0; 0 or less means the default."
    )
    in_flight_load_producer_name: str = Field("", description="Whose counts to read; empty: the default producer.")


class TokenLoadScorer(Scorer):
    """score = 1 − min(L, T) / T, with T the threshold and L = tokens in flight + what this request would add there.

    With T = 1000: a server with 200 tokens in flight that would have to prefill 300 more scores 0.5. A server that
    already has the prompt cached adds nothing and scores 0.8.
    """

    plugin_type = "token-load-scorer"
    parameters_model = TokenLoadParameters

    def __init__(self, name: str, parameters: TokenLoadParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        threshold = parameters.queue_threshold_tokens
        self._threshold_tokens = threshold if threshold > 0 else _DEFAULT_THRESHOLD_TOKENS
        self._load_key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)
        self._uncached_key = UNCACHED_TOKENS.by(parameters.in_flight_load_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return self._load_key, self._uncached_key

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        tokens = np.zeros(len(candidates))
        load = cycle.get(self._load_key)
        if load is not None:
            tokens += candidates.take(load.tokens)
        uncached = cycle.get(self._uncached_key)
        if uncached is not None:
            tokens += candidates.take(uncached.prefill_tokens) + uncached.expected_output_tokens
        return 1.0 - np.minimum(tokens, self._threshold_tokens) / self._threshold_tokens
