"""Deadlines of one length, thousands at a time and nearly none of them ever met: one timer serves them all.

What is set first is due first, so they stand in the order in which they were set, and the timer is for the first one.
To set one and to take it back costs an entry in a dict; the timer is left alone until it goes off.
"""

from collections.abc import Callable
from typing import Protocol


class Expires(Protocol):
    def expired(self) -> None:
        """The deadline has passed. It is not set any more."""


class Deadlines:
    """
    Attributes:
        after_s: from setting a deadline to its passing.
        armed: the timer is set.
    """

    def __init__(
        self,
        after_s: float,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """
        Args:
            clock: seconds, monotonic.
            call_later: calls back after so many seconds.
        """
        self.after_s = after_s
        self._clock = clock
        self._call_later = call_later
        self._due_s: dict[Expires, float] = {}  # in the order of what is due
        self.armed = False

    def __len__(self) -> int:
        return len(self._due_s)

    def set(self, owner: Expires, now_s: float) -> None:
        """`now_s`: by the clock, which the caller has just read. For an owner that has none set."""
        self._due_s[owner] = now_s + self.after_s
        if not self.armed:
            self.armed = True
            self._call_later(self.after_s, self._sweep)

    def take_back(self, owner: Expires) -> None:
        """Harmless if there is none."""
        self._due_s.pop(owner, None)

    def _sweep(self) -> None:
        self.armed = False
        now_s = self._clock()
        while self._due_s:
            owner, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                if not self.armed:  # or an owner whose deadline has passed has set another
                    self.armed = True
                    self._call_later(due_s - now_s, self._sweep)
                return
            del self._due_s[owner]
            owner.expired()
