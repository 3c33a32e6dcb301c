"""A ratio of two sums over the requests in flight on each server: kept up as they come and go.

The ledger knows the requests of all processes that pick, and tokens alone. What else is to be known of those in flight
is added up here, of the requests of this process. So it is asked for as a ratio, which holds for the others, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.scheduling.data import FloatArray


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    amount: float = 0.0
    per: float = 0.0


class RatioInFlight:
    """What is added up its kinds say. All but `_ratios` is O(1)."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, _Sums] = {}
        self._by_request: dict[str, tuple[str, float, float]] = {}

    def remove(self, request_id: str) -> None:
        """It no longer counts. Again, or of an unknown request, nothing happens."""
        self._drop(request_id)

    def _put(self, request_id: str, endpoint_id: str, amount: float, per: float) -> None:
        """It is in flight there; in place of what was put for it before. `per`: above 0."""
        self._drop(request_id)
        self._by_request[request_id] = endpoint_id, amount, per
        sums = self._by_endpoint.setdefault(endpoint_id, _Sums())
        sums.requests += 1
        sums.amount += amount
        sums.per += per

    def _drop(self, request_id: str) -> None:
        found = self._by_request.pop(request_id, None)
        if found is None:
            return
        endpoint_id, amount, per = found
        sums = self._by_endpoint[endpoint_id]
        sums.requests -= 1
        sums.amount -= amount
        sums.per -= per
        if not sums.requests:
            del self._by_endpoint[endpoint_id]

    def _ratios(self, endpoint_ids: Sequence[str], nothing_there: float) -> FloatArray:
        """The amounts at each endpoint by what they are per; `nothing_there` where nothing of ours is."""
        by_endpoint = self._by_endpoint
        if not by_endpoint:
            return np.full(len(endpoint_ids), nothing_there)
        found = [by_endpoint.get(endpoint_id) for endpoint_id in endpoint_ids]
        return np.array([nothing_there if sums is None else sums.amount / sums.per for sums in found])
