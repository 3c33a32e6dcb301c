"""What predictions may cost. A prediction cannot be broken off, but the next ones can be left out."""

from collections.abc import Callable
from typing import Self

MAX_SKIPPED = 64


class PredictionBudget:
    """After a prediction that took longer than `limit_s` one is left out, after the next such two, then four, up to 64.

    Under load that is more than predictions can follow, requests thus go on without them, instead of queueing for them.
    Used as a context around each prediction that it `allows`.

    Args:
        timer: monotonic seconds; `None` measures nothing and leaves nothing out.
    """

    def __init__(self, limit_s: float, timer: Callable[[], float] | None) -> None:
        self._limit_s = limit_s
        self._timer = timer
        self._started_s = 0.0
        self._to_skip = 0
        self._next_skip = 1
        self.last_s: float | None = None
        """What the last prediction took; `None` if nobody measures."""

    @property
    def to_skip(self) -> int:
        """Predictions that will be left out."""
        return self._to_skip

    def allows(self) -> bool:
        if self._to_skip == 0:
            return True
        self._to_skip -= 1
        return False

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._started_s = self._timer()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is None:
            return
        self.last_s = self._timer() - self._started_s
        if self.last_s <= self._limit_s:
            self._next_skip = 1
        else:
            self._to_skip = self._next_skip
            self._next_skip = min(2 * self._next_skip, MAX_SKIPPED)
