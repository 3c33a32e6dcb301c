"""How full the pool is, by what we ourselves have in flight."""

from typing import Literal

import numpy as np
from pydantic import Field

from epp.pool.snapshot import FloatArray
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Filter, Parameters, SaturationDetector, Services


class ConcurrencyDetectorParameters(Parameters):
    max_concurrency: int = Field(100, gt=0, description="Requests in flight at which a server is full.")
    max_token_concurrency: int = Field(1_000_000, gt=0, description="Tokens in flight at which a server is full.")
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = Field("requests", description="What is counted.")
    headroom: float = Field(0.0, ge=0, description="Filter only: how far above the limits is still allowed.")
    in_flight_load_producer_name: str = Field("", description="Accepted; all producers show the same one ledger.")


class ConcurrencyDetector(SaturationDetector, Filter):
    """saturation = in flight / capacity over all servers together, in requests or in tokens.

    Two servers of 100 with 50 and 100 requests in flight are 0.75 full. Mode `hybrid` takes the mean over servers of
    the fuller of the two ratios. An empty pool is not full: its saturation is 0.

    As a filter it keeps servers below int(limit · (1 + headroom)), in both measures for `hybrid`. It may keep none.
    """

    plugin_type = "concurrency-detector"
    parameters_model = ConcurrencyDetectorParameters

    def __init__(self, name: str, parameters: ConcurrencyDetectorParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._mode = parameters.concurrency_mode
        self._limits = (parameters.max_concurrency, parameters.max_token_concurrency)
        self._allowed = 1.0 + parameters.headroom

    def saturation(self, candidates: Candidates, now_s: float) -> float:
        if not len(candidates):
            return 0.0
        ratios = [in_flight / limit for in_flight, limit in self._measured(candidates)]
        return float(np.maximum.reduce(ratios).mean())

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        within = [in_flight < int(limit * self._allowed) for in_flight, limit in self._measured(candidates)]
        return candidates.where(np.logical_and.reduce(within))

    def drop_reason(self) -> str:
        return "too much in flight"

    def _measured(self, candidates: Candidates) -> list[tuple[FloatArray, int]]:
        """In flight per candidate and its limit, for each measure that the mode counts."""
        load = self.services.ledger.load(candidates.snapshot)
        max_requests, max_tokens = self._limits
        requests = (candidates.take(load.requests), max_requests)
        tokens = (candidates.take(load.tokens), max_tokens)
        return {"requests": [requests], "tokens": [tokens], "hybrid": [requests, tokens]}[self._mode]
