"""How many of the requests in flight on each server can still keep their targets.

From its decision to its first token a request counts by the probability that was expected then. If that token is late,
there is no hope left; else there is what was expected of the pace after it. The ledger counts the requests of all
processes that pick; this knows those of its own, so it says what share of them is hopeful.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epp.scheduling.data import FloatArray


class _Sent(NamedTuple):
    endpoint_id: str
    hope: float
    paced: float


@dataclass(slots=True)
class _Here:
    requests: int = 0
    hopes: float = 0.0


class Hopes:
    """All methods but `shares` are O(1)."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, _Here] = {}
        self._by_request: dict[str, _Sent] = {}

    @property
    def requests(self) -> int:
        """Of this process, in flight."""
        return len(self._by_request)

    def add(self, request_id: str, endpoint_id: str, in_time: float, paced: float) -> None:
        """How likely it keeps its TTFT target, and how likely that of TPOT."""
        self._put(request_id, _Sent(endpoint_id, in_time * paced, paced))

    def settle(self, request_id: str, in_time: bool) -> None:
        """Its first token has come. Of an unknown request nothing is noted."""
        sent = self._by_request.get(request_id)
        if sent is not None:
            self._put(request_id, sent._replace(hope=sent.paced if in_time else 0.0))

    def remove(self, request_id: str) -> None:
        """It has ended. Again, or of an unknown request, nothing happens."""
        found = self._by_request.pop(request_id, None)
        if found is None:
            return
        here = self._by_endpoint[found.endpoint_id]
        here.requests -= 1
        here.hopes -= found.hope
        if not here.requests:
            del self._by_endpoint[found.endpoint_id]

    def shares(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """For each endpoint the mean hope of what is in flight there; 1 where nothing of ours is."""
        by_endpoint = self._by_endpoint
        if not by_endpoint:
            return np.ones(len(endpoint_ids))
        found = [by_endpoint.get(endpoint_id) for endpoint_id in endpoint_ids]
        means = np.array([1.0 if here is None else here.hopes / here.requests for here in found])
        shares: FloatArray = np.minimum(np.maximum(means, 0.0), 1.0)  # sums of many are a little off
        return shares

    def _put(self, request_id: str, sent: _Sent) -> None:
        self.remove(request_id)
        self._by_request[request_id] = sent
        here = self._by_endpoint.setdefault(sent.endpoint_id, _Here())
        here.requests += 1
        here.hopes += sent.hope
