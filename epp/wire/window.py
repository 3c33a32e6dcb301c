"""Keeps the two ends of a body that passes by: what a usage reader needs, at a cost that no body can drive up."""

from epp.wire.sse import SseReader


class BodyWindow:
    """The first `head_bytes` and the last `tail_bytes` of a body, however it is cut into chunks."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()  # up to twice as long as asked for: then it is cut, which makes cutting cheap
        self._total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._total_bytes += len(chunk)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if len(chunk) >= self._tail_bytes:
            self._tail.clear()
            chunk = chunk[len(chunk) - self._tail_bytes :]
        self._tail += chunk
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        """The end of the body, as far as it is not in `head`."""
        return bytes(self._tail[max(0, len(self._tail) - self._tail_bytes) :])

    @property
    def whole(self) -> bytes | None:
        """The body, if all of it was kept."""
        kept = self.head + self.tail
        return kept if len(kept) == self._total_bytes else None

    def payloads(self) -> list[bytes]:
        """The `data` of the server-sent events that lie wholly in head or tail, in order.

        At the cut, an event that begins exactly where the tail does is not told from the rest of one, and left out.
        """
        if (whole := self.whole) is not None:
            reader = SseReader(max_event_bytes=len(whole))
            return reader.feed(whole) + reader.close()
        head = SseReader(max_event_bytes=self._head_bytes).feed(self.head)
        tail = SseReader(max_event_bytes=self._tail_bytes, mid_stream=True)
        return head + tail.feed(self.tail) + tail.close()
