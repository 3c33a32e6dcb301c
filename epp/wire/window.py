"""Keeps the two ends of a body that passes by: what a usage reader needs, at a cost that no body can drive up."""

from collections import deque
from collections.abc import Callable
from typing import Final

from epp.wire.sse import SseReader

# So many chunks are kept as they came; then they are joined, so that many small ones cost no more than their bytes.
_MOST_CHUNKS: Final = 256


class BodyWindow:
    """The first `head_bytes` and the last `tail_bytes` of a body, however it is cut into chunks.

    A chunk that passes costs a reference; bytes are put together when somebody asks for them.

    Attributes:
        total_bytes: how much has passed.
    """

    __slots__ = (
        "_blocks",
        "_chunks",
        "_head",
        "_head_bytes",
        "_held_bytes",
        "_room_bytes",
        "_tail_bytes",
        "total_bytes",
    )

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head: list[bytes] = []
        self._room_bytes = head_bytes  # that the head still has
        self._blocks: deque[bytes] = deque()  # behind the head: what was joined, then what was not yet
        self._chunks: list[bytes] = []
        self._held_bytes = 0  # in both
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        if self._room_bytes > 0:
            self._head.append(chunk[: self._room_bytes])
            chunk = chunk[self._room_bytes :]
            self._room_bytes -= len(self._head[-1])
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes > 2 * self._tail_bytes or len(self._chunks) >= _MOST_CHUNKS:
            self._settle()

    def _settle(self) -> None:
        """Join the chunks and let go of what lies before the tail."""
        block = b"".join(self._chunks)
        self._chunks.clear()
        if len(block) > self._tail_bytes:
            self._blocks.clear()
            block = block[len(block) - self._tail_bytes :]
            self._held_bytes = len(block)
        self._blocks.append(block)
        while self._held_bytes - len(self._blocks[0]) >= self._tail_bytes > 0:
            self._held_bytes -= len(self._blocks.popleft())

    @property
    def head(self) -> bytes:
        return b"".join(self._head)

    @property
    def tail(self) -> bytes:
        """The end of the body, as far as it is not in `head`."""
        held = b"".join((*self._blocks, *self._chunks))
        return held[max(0, len(held) - self._tail_bytes) :]

    @property
    def whole(self) -> bytes | None:
        """The body, if all of it was kept."""
        if self.total_bytes > self._head_bytes + self._tail_bytes:
            return None
        return self.head + self.tail

    def payloads(self, find: Callable[[bytes], int] = lambda data: 0) -> list[bytes]:
        """The `data` of the server-sent events that lie wholly in head or tail, in order.

        At the cut, an event that begins exactly where the tail does is not told from the rest of one, and left out.

        Args:
            find: where what is looked for stands first in these bytes; below 0 if nowhere. Events that end before it
                may be left out, which makes reading cheap where few events are of interest.
        """
        if (whole := self.whole) is not None:
            return _payloads(whole, find, len(whole))
        head = _payloads(self.head, find, self._head_bytes, cut_off=True)
        return head + _payloads(self.tail, find, self._tail_bytes, mid_stream=True)


def _payloads(
    data: bytes, find: Callable[[bytes], int], max_event_bytes: int, *, mid_stream: bool = False, cut_off: bool = False
) -> list[bytes]:
    at = find(data)
    if at < 0:
        return []
    # An event begins behind an empty line. Where lines end in another way, all is read.
    begins = data.rfind(b"\n\n", 0, at)
    if begins >= 0:
        data, mid_stream = data[begins + 2 :], False
    reader = SseReader(max_event_bytes, mid_stream=mid_stream)
    payloads = reader.feed(data)
    return payloads if cut_off else payloads + reader.close()
