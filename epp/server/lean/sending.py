"""What is queued for the peer, and when it may go: a connection's output under flow control (RFC 9113, section 5.2).

What a stream says goes out as one DATA frame at once if the windows allow it, as they nearly always do. Else it is
queued; a flush, once per read, turns what the windows allow into frames. A stream that its own window stops waits for
that window. Those that the connection's window stops stand in a line and take turns of one frame, so a turn is never
empty and the work done is never more than the bytes sent.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from epp.server.lean import frames
from epp.server.lean.frames import ConnectionFault, ErrorCode, StreamFault
from epp.server.lean.headers import OK_TRAILERS, RESPONSE_HEADERS, trailers, trailers_only
from epp.server.lean.messages import PREFIX_BYTES, prefix
from epp.server.lean.status import Status

Bytes = bytes | memoryview

# What stands before a message that is a frame of its own: `frames.head` and `messages.prefix` in one.
_DATA_AND_PREFIX: Final = struct.Struct(">HBBBIBI")

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_OK: Final = Status.OK


class SendQueue:
    """What one stream has to say: the `epp.server.transport.Stream` of its exchange.

    Attributes:
        window: what the peer takes on this stream now, in bytes; below 0 if it took back what it had allowed.
        ending: the status that ends the stream after the queue, and its message; `None` while it goes on.
        answered: headers were sent.
        over: nothing is sent any more.
        in_line: for the next flush.
        on_empty: called once when everything queued is sent.
    """

    __slots__ = (
        "_parts",
        "_sender",
        "answered",
        "ending",
        "in_line",
        "on_empty",
        "over",
        "queued_bytes",
        "stream_id",
        "window",
    )

    def __init__(self, stream_id: int, sender: "Sender") -> None:
        self.stream_id = stream_id
        self.window = sender.initial_window
        self.queued_bytes = 0
        self.ending: tuple[Status, str] | None = None
        self.answered = self.over = self.in_line = False
        self.on_empty: Callable[[], None] | None = None
        self._parts: list[Bytes] | None = None
        self._sender = sender

    @property
    def ends(self) -> bool:
        """Whether `ending` is set, asked anew: of an attribute a type checker believes what it has just seen."""
        return self.ending is not None

    def send(self, replies: Sequence[bytes]) -> None:
        if self.over or self.ending is not None:
            return
        if not self.queued_bytes and len(replies) == 1 and self._sender.send_now(self, replies[0]):
            return
        added = 0
        parts = self._parts = self._parts or []
        for reply in replies:
            length = len(reply)
            parts.append(prefix(length))
            parts.append(reply)
            added += PREFIX_BYTES + length
        self.queued_bytes += added
        self._sender.queued(self, added)

    def finish(self) -> None:
        self.end(_OK)

    def afterwards(self, action: Callable[[], None]) -> None:
        self._sender.put_off(action)

    def end(self, status: Status, message: str = "", *, at_once: bool = False) -> None:
        """End with this status once everything queued is sent; or, `at_once`, send nothing of it."""
        if self.over or (self.ending is not None and not at_once):
            return
        self.ending = status, message
        self._sender.queued(self, -self._clear() if at_once else 0)

    def take(self, limit: int, out: list[Bytes]) -> None:
        """Move the first `limit` bytes of the queue to `out`."""
        parts = self._parts
        assert parts is not None  # there are bytes in the queue
        self.queued_bytes -= limit
        if not self.queued_bytes:
            out.extend(parts)
            self._parts = None
            return
        taken = 0
        while limit:
            part = parts[taken]
            if len(part) > limit:
                view = memoryview(part)
                part, parts[taken] = view[:limit], view[limit:]
            else:
                taken += 1
            out.append(part)
            limit -= len(part)
        del parts[:taken]

    def drop(self) -> int:
        """Nothing is sent any more. Returns how many bytes will not be."""
        self.over = True
        return self._clear()

    def _clear(self) -> int:
        dropped, self.queued_bytes = self.queued_bytes, 0
        self._parts = None
        return dropped


class Sender:
    """A connection's output.

    Attributes:
        out: frames to be written.
        window: what the peer takes on the connection now, in bytes.
        initial_window: of a new stream.
        unsent_bytes: queued over all streams.
        put_off_actions: what is to be done when `out` is written, in order.
    """

    def __init__(self, max_frame_bytes: int, wake: Callable[[], None], ended: Callable[[SendQueue], None]) -> None:
        """
        Args:
            wake: called when something is queued while `corked` is not set: somebody has to flush.
            ended: called with each stream whose last frame is in `out`.
        """
        self.out: list[Bytes] = []
        self.put_off_actions: list[Callable[[], None]] = []
        self.window = frames.DEFAULT_WINDOW_BYTES
        self.initial_window = frames.DEFAULT_WINDOW_BYTES
        self.unsent_bytes = 0
        self.corked = False
        self._max_frame_bytes = max_frame_bytes
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._wake = wake
        self._ended = ended
        self._ready: deque[SendQueue] = deque()
        self._waiting: OrderedDict[int, SendQueue] = OrderedDict()  # for the connection's window, by stream id

    def send_now(self, queue: SendQueue, message: bytes) -> bool:
        """Send a message of a stream that has nothing queued, in one frame. False if it has to be queued after all."""
        length = len(message)
        size = PREFIX_BYTES + length
        if size > queue.window or size > self.window or size > self._frame_bytes:
            return False
        queue.window -= size
        self.window -= size
        out = self.out
        if not queue.answered:
            queue.answered = True
            out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, queue.stream_id, RESPONSE_HEADERS))
        out.append(_DATA_AND_PREFIX.pack(size >> 8, size & 0xFF, frames.DATA, 0, queue.stream_id, 0, length))
        out.append(message)
        if not self.corked:
            self._wake()
        return True

    def queued(self, queue: SendQueue, added_bytes: int) -> None:
        self.unsent_bytes += added_bytes
        self._line_up(queue)
        if not self.corked:
            self._wake()

    def put_off(self, action: Callable[[], None]) -> None:
        """Do this when `out` is written."""
        self.put_off_actions.append(action)
        if not self.corked:
            self._wake()

    def drop(self, queue: SendQueue) -> None:
        self.unsent_bytes -= queue.drop()
        self._waiting.pop(queue.stream_id, None)

    @property
    def busy(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._ready or self._waiting)

    def flush(self) -> None:
        """Turn what may go into frames."""
        ready, waiting = self._ready, self._waiting
        while ready or (waiting and self.window > 0):
            if ready:
                queue = ready.popleft()
                queue.in_line = False
            else:
                queue = waiting.popitem(last=False)[1]
            if not queue.over:
                self._advance(queue)

    # --- what the peer allows -----------------------------------------------------------------------------------------

    def frame_limit(self, peer_bytes: int) -> None:
        self._frame_bytes = min(peer_bytes, self._max_frame_bytes)

    def initial_window_changed(self, window: int, queues: Iterable[SendQueue]) -> None:
        """It counts for open streams too, which may take their windows below 0 (RFC 9113, section 6.9.2)."""
        change, self.initial_window = window - self.initial_window, window
        for queue in queues:
            queue.window += change
            if queue.window > frames.MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window out of range")
            if queue.queued_bytes:
                self._line_up(queue)

    def window_update(self, increment: int) -> None:
        self.window += increment
        if not increment:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an empty WINDOW_UPDATE")
        if self.window > frames.MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window out of range")

    def stream_window_update(self, queue: SendQueue, increment: int) -> None:
        if not increment:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR)
        queue.window += increment
        if queue.window > frames.MAX_WINDOW_BYTES:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR)
        if queue.queued_bytes:
            self._line_up(queue)

    # --- queues to frames ---------------------------------------------------------------------------------------------

    def _line_up(self, queue: SendQueue) -> None:
        if not queue.in_line:
            queue.in_line = True
            self._ready.append(queue)

    def _advance(self, queue: SendQueue) -> None:
        if queue.queued_bytes:
            if not queue.answered:
                queue.answered = True
                self.out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, queue.stream_id, RESPONSE_HEADERS))
            size = min(queue.queued_bytes, queue.window, self.window, self._frame_bytes)
            if size > 0:
                queue.window -= size
                self.window -= size
                self.unsent_bytes -= size
                self.out.append(frames.head(frames.DATA, 0, queue.stream_id, size))
                queue.take(size, self.out)
            if queue.queued_bytes:
                self._wait(queue)
                return
        if queue.ending is not None:
            self._end(queue, *queue.ending)
        elif queue.on_empty is not None:
            on_empty, queue.on_empty = queue.on_empty, None
            on_empty()

    def _wait(self, queue: SendQueue) -> None:
        if queue.window > 0:
            if self.window > 0:
                self._line_up(queue)
            else:
                self._waiting.setdefault(queue.stream_id, queue)

    def _end(self, queue: SendQueue, status: Status, message: str) -> None:
        if not queue.answered:
            block = trailers_only(status, message)
        elif status is _OK:
            block = OK_TRAILERS
        else:
            block = trailers(status, message)
        self.end_with(queue, block)
        self._ended(queue)

    def end_with(self, queue: SendQueue, block: bytes) -> None:
        """The stream's last frame, whatever is queued."""
        self.drop(queue)
        flags = frames.END_HEADERS | frames.END_STREAM
        self.out.append(frames.frame(frames.HEADERS, flags, queue.stream_id, block))
