"""How many requests per second come to each server, of late, as far as this process places them.

Before it is decided where a request goes, it comes to each of its candidates alike. So a server that few requests may
use has few, whatever the others have.

The ledger knows what all processes that pick have in flight, but not how often requests arrive. Who wants the rate of
all takes as many times this one as they have more in flight.
"""

from collections.abc import Sequence
from math import exp

import numpy as np

from epp.scheduling.data import FloatArray, IntArray

_WINDOW_S = 20.0
_LEAST_S = 5.0  # over which they are counted; a burst at the start says little


class Arrivals:
    """An exponentially fading count for each endpoint. For use from one thread; times in seconds of one clock."""

    def __init__(self) -> None:
        self._row_by_id: dict[str, int] = {}
        self._count = np.zeros(0)
        self._since_s = np.zeros(0)  # an endpoint's first request; nan before it
        self._at_s = 0.0

    def follow(self, endpoint_ids: Sequence[str]) -> None:
        """From now on rows are of these. What was counted of those that stay is kept."""
        known = [self._row_by_id.get(endpoint_id) for endpoint_id in endpoint_ids]
        self._row_by_id = {endpoint_id: row for row, endpoint_id in enumerate(endpoint_ids)}
        self._count = np.array([0.0 if row is None else self._count[row] for row in known])
        self._since_s = np.array([np.nan if row is None else self._since_s[row] for row in known])

    def add(self, rows: IntArray | slice, candidates: int, now_s: float) -> None:
        """A request has come, which may go to these; `candidates`: how many they are."""
        self._count *= exp(min((self._at_s - now_s) / _WINDOW_S, 0.0))
        self._count[rows] += 1.0 / candidates
        self._since_s[rows] = np.fmin(self._since_s[rows], now_s)
        self._at_s = max(self._at_s, now_s)

    def per_s(self, rows: IntArray | slice) -> FloatArray:
        """As of the last arrival; 0 where none was."""
        seen_s = np.fmax(self._at_s - self._since_s[rows], _LEAST_S)
        rates: FloatArray = self._count[rows] / (_WINDOW_S * (1.0 - np.exp(-seen_s / _WINDOW_S)))
        return rates
