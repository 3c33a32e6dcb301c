"""How many requests per second this process has had to place, of late.

The ledger knows what all processes that pick have in flight, but not how often requests arrive. Who wants the rate of
all takes as many times this one as they have more in flight.
"""

from math import exp

_WINDOW_S = 20.0
_LEAST_S = 5.0  # over which they are counted; a burst at the start says little


class Arrivals:
    """An exponentially fading count."""

    def __init__(self) -> None:
        self._count = 0.0
        self._first_s: float | None = None
        self._at_s = 0.0

    def add(self, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        else:
            self._count *= exp((self._at_s - now_s) / _WINDOW_S)
        self._count += 1.0
        self._at_s = now_s

    @property
    def per_s(self) -> float:
        """As of the last arrival."""
        if self._first_s is None:
            return 0.0
        seen_s = max(self._at_s - self._first_s, _LEAST_S)
        return self._count / (_WINDOW_S * (1.0 - exp(-seen_s / _WINDOW_S)))
