"""The open calls of one connection: how they begin, what bounds them together, and how they end.

A call ends in one of three ways, and its exchange is closed once in each: our last frame is written, either side
resets its stream, or the connection is lost.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from epp.server.lean import frames
from epp.server.lean.frames import ErrorCode, StreamFault
from epp.server.lean.headers import Call, trailers_only
from epp.server.lean.limits import Allowance, LeanOptions
from epp.server.lean.sending import Sender, SendQueue
from epp.server.lean.status import Status
from epp.server.lean.stream import LeanStream, Method, Timer

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_CANCELLED: Final = Status.CANCELLED
_DEADLINE_EXCEEDED: Final = Status.DEADLINE_EXCEEDED
_NO_ERROR: Final = ErrorCode.NO_ERROR


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Time, from outside.

    Attributes:
        clock: seconds, monotonic.
        call_later: after so many seconds.
    """

    clock: Callable[[], float]
    call_later: Callable[[float, Callable[[], None]], Timer]


class Calls:
    """
    Attributes:
        sender: of the connection.
        streams: those that are open, by id.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], options: LeanOptions, time: Clockwork, wake: Callable[[], None]
    ) -> None:
        """`wake`: see `Sender`."""
        self._methods = methods
        self._options = options
        self._time = time
        self.sender = Sender(options.max_frame_bytes, wake, self._ended)
        self.streams: dict[int, LeanStream] = {}
        self._unfinished_bytes = 0
        self._resets = Allowance("resets", options.reset_burst, options.resets_per_s, time.clock)

    def __len__(self) -> int:
        return len(self.streams)

    def queues(self) -> Iterator[SendQueue]:
        return (stream.queue for stream in self.streams.values())

    def open(self, stream_id: int, call: Call, *, half_closed: bool) -> None:
        """Begin a call, or answer one that cannot be served. Raises `StreamFault` if there are too many."""
        options = self._options
        if len(self.streams) >= options.max_concurrent_streams:
            raise StreamFault(ErrorCode.REFUSED_STREAM)
        queue = SendQueue(stream_id, self.sender)
        method = self._methods.get(call.path)
        if call.refusal is not None or method is None:
            self.sender.end_with(queue, call.refusal or trailers_only(Status.UNIMPLEMENTED, "unknown method"))
            if not half_closed:
                self._stop_peer(stream_id)
            return
        stream = LeanStream(queue, call.encoding, method, options, self._time.clock)
        self.streams[stream_id] = stream
        if call.timeout_s is not None:
            # The caller has given up by then: what is queued is of no use to it.
            give_up = partial(queue.end, _DEADLINE_EXCEEDED, "", at_once=True)
            stream.deadline = self._time.call_later(call.timeout_s, give_up)
        if half_closed:
            stream.half_close()

    def receive(self, stream: LeanStream, data: bytes, start: int, end: int) -> None:
        """Of the call's messages, the bytes between two places, if they are not just one (`LeanStream.take_whole`)."""
        before_bytes = stream.unfinished_bytes
        stream.receive(data, start, end)
        after_bytes = stream.unfinished_bytes
        if after_bytes != before_bytes:
            self._unfinished_bytes += after_bytes - before_bytes
            if self._unfinished_bytes > self._options.max_unfinished_bytes:
                stream.queue.end(Status.RESOURCE_EXHAUSTED, "too many unfinished messages on this connection")
        if after_bytes and stream.queue.ending is not None:
            self._unfinished_bytes -= after_bytes
            stream.drop_unfinished()

    def top_up(self, stream: LeanStream) -> None:
        """Let the peer send more, as soon as it has taken what it was sent."""
        queue = stream.queue
        if queue.queued_bytes > self._options.high_water_bytes:
            queue.on_empty = partial(self.top_up, stream)
        elif not (queue.over or stream.half_closed):
            size = self._options.stream_window_bytes
            self.sender.out.append(frames.window_update(queue.stream_id, size - stream.receivable_bytes))
            stream.receivable_bytes = size

    # --- how calls end ------------------------------------------------------------------------------------------------

    def reset_by_peer(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._forget(stream, _CANCELLED, cancelled=True)
            if not stream.spoken:
                self._resets.spend()

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """For a fault of the peer: counted, for it may be on purpose."""
        self.sender.out.append(frames.rst_stream(stream_id, code))
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._forget(stream, _CANCELLED, cancelled=True)
        self._resets.spend()

    def cut(self) -> None:
        """The connection is gone, and all of them with it."""
        while self.streams:
            self._forget(self.streams.popitem()[1], _CANCELLED, cancelled=True, lost=True)

    def _ended(self, queue: SendQueue) -> None:
        """Our last frame is on its way."""
        stream = self.streams.pop(queue.stream_id)
        if not stream.half_closed:
            self._stop_peer(queue.stream_id)
        assert queue.ending is not None
        status = queue.ending[0]
        self._drop(stream)
        # The exchange has said its last; what it still does about that may wait until that is written.
        self.sender.put_off(partial(stream.close, status, cancelled=status is _DEADLINE_EXCEEDED))

    def _stop_peer(self, stream_id: int) -> None:
        """Tell the peer to send no more on a stream that is answered (RFC 9113, section 8.1)."""
        self.sender.out.append(frames.rst_stream(stream_id, _NO_ERROR))

    def _forget(self, stream: LeanStream, status: Status, *, cancelled: bool, lost: bool = False) -> None:
        """`stream` is no longer among the open ones."""
        self._drop(stream)
        stream.close(status, cancelled=cancelled, lost=lost)

    def _drop(self, stream: LeanStream) -> None:
        """Nothing more is sent of it, nor kept."""
        self._unfinished_bytes -= stream.unfinished_bytes
        self.sender.drop(stream.queue)
