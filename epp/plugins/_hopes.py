"""How many of the requests in flight on each server can still keep their targets.

From its decision to its first token a request counts by the probability that was expected then. If that token is late,
there is no hope left; else there is what was expected of the pace after it. The ledger counts the requests of all
processes that pick; this knows those of its own, so it says what share of them is hopeful.
"""

from collections.abc import Sequence

import numpy as np

from epp.plugins._ratio_in_flight import RatioInFlight
from epp.scheduling.data import FloatArray


class Hopes(RatioInFlight):
    """Hope per request."""

    def __init__(self) -> None:
        super().__init__()
        self._paced_by_request: dict[str, float] = {}

    @property
    def requests(self) -> int:
        """Of this process, in flight."""
        return len(self._by_request)

    def add(self, request_id: str, endpoint_id: str, in_time: float, paced: float) -> None:
        """How likely it keeps its TTFT target, and how likely that of TPOT."""
        self._paced_by_request[request_id] = paced
        self._put(request_id, endpoint_id, in_time * paced, 1.0)

    def settle(self, request_id: str, in_time: bool) -> None:
        """Its first token has come. Of an unknown request nothing is noted."""
        found = self._by_request.get(request_id)
        if found is not None:
            self._put(request_id, found[0], self._paced_by_request[request_id] if in_time else 0.0, 1.0)

    def remove(self, request_id: str) -> None:
        super().remove(request_id)
        self._paced_by_request.pop(request_id, None)

    def shares(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """For each endpoint the mean hope of what is in flight there; 1 where nothing of ours is."""
        means = self._ratios(endpoint_ids, nothing_there=1.0)
        shares: FloatArray = np.minimum(np.maximum(means, 0.0), 1.0)  # sums of many are a little off
        return shares
