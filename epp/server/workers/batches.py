"""What a worker has to say and nobody waits for: collected for a moment, and sent together."""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class CallLater(Protocol):
    def __call__(self, delay_s: float, callback: Callable[[], None], /) -> object: ...


class Clockwork(NamedTuple):
    """Time, from outside: monotonic seconds, and the event loop's `call_later`."""

    clock: Callable[[], float]
    call_later: CallLater


class Batch(Generic[T]):
    """Sends what was added at most `pause_s` after it was, and no more than one batch in that time.

    What comes after a quiet time is sent at the end of the event loop's turn.
    """

    def __init__(self, send: Callable[[list[T]], None], pause_s: float, time: Clockwork) -> None:
        self._send = send
        self._pause_s = pause_s
        self._clock, self._call_later = time
        self._items: list[T] = []
        self._sent_s = float("-inf")

    def add(self, item: T) -> None:
        if not self._items:
            self._call_later(max(0.0, self._sent_s + self._pause_s - self._clock()), self.flush)
        self._items.append(item)

    def flush(self) -> None:
        """Send now what there is."""
        if self._items:
            items, self._items = self._items, []
            self._sent_s = self._clock()
            self._send(items)
