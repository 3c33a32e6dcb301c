"""What we ourselves have in flight on each server, and what this request would add there.

The counts are the ledger's, which the director keeps: this plugin only shows them to scorers and works out the tokens
that the director will reserve.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.inference.request import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    IN_FLIGHT_LOAD,
    PREFIX_MATCH,
    UNCACHED_TOKENS,
    DataKey,
    InFlightLoad,
    UncachedTokens,
)
from epp.scheduling.plugin import Parameters, Producer, Services


class InflightLoadParameters(Parameters):
    add_estimated_output_tokens: bool = Field(False, description="Count the output that is expected too.")
    output_ratio: float = Field(1.5, ge=0, description="Output tokens expected per prompt token.")
    max_estimated_output_tokens: int | None = Field(None, ge=0, description="Most output that is expected.")
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")
    sync_cross_replica_state: bool = Field(True, description="Accepted; a picker counts what it sent itself.")


class InflightLoadProducer(Producer):
    """Publishes requests and tokens in flight per server, and this request's uncached tokens per server.

    Uncached = prompt tokens − matched blocks · block size, not below 0: of a 10,000-token prompt, a server that holds
    148 blocks of 64 tokens must prefill 528. Without a prefix match it is the whole prompt. The output expected is 0,
    or, with `addEstimatedOutputTokens`, min(round(prompt tokens · outputRatio), the client's own cap,
    maxEstimatedOutputTokens). Of a prompt whose tokens are not known nothing is published.
    """

    plugin_type = "inflight-load-producer"
    parameters_model = InflightLoadParameters

    def __init__(self, name: str, parameters: InflightLoadParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._parameters = parameters
        self._match_key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)
        self._load_key = IN_FLIGHT_LOAD.by(name)
        self._uncached_key = UNCACHED_TOKENS.by(name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return DEFAULT_PROMPT, self._match_key

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return self._load_key, self._uncached_key

    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        snapshot = candidates.snapshot
        load = self.services.ledger.load(snapshot)
        cycle.publish(self._load_key, InFlightLoad(*load))
        prompt = cycle.get(DEFAULT_PROMPT)
        if prompt is None:
            return
        match = cycle.get(self._match_key)
        prompt_tokens = prompt.tokens
        uncached = UncachedTokens(
            prefill_tokens=np.full(len(snapshot), float(prompt_tokens))
            if match is None
            else match.uncached_tokens(prompt_tokens),
            expected_output_tokens=self._expected_output_tokens(cycle.request, prompt_tokens),
        )
        cycle.publish(self._uncached_key, uncached)

    def _expected_output_tokens(self, request: Request, prompt_tokens: int) -> float:
        if not self._parameters.add_estimated_output_tokens:
            return 0.0
        limits = (request.max_output_tokens, self._parameters.max_estimated_output_tokens)
        estimate = round(prompt_tokens * self._parameters.output_ratio)
        return float(min([estimate, *(limit for limit in limits if limit is not None)]))
