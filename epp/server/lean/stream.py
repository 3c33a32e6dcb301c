"""One gRPC call: the exchange that answers it, fed with the messages of its stream and closed exactly once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from epp.server.lean.frames import ConnectionFault, ErrorCode
from epp.server.lean.limits import LeanOptions
from epp.server.lean.messages import MessageReader, whole_message
from epp.server.lean.sending import SendQueue
from epp.server.lean.status import RpcFault, Status
from epp.server.transport import Exchange, ExchangeFactory, StreamObserver
from epp.wire.codec import ProtocolError

logger = logging.getLogger(__name__)

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_OK: Final = Status.OK


@dataclass(frozen=True, slots=True)
class Method:
    """A gRPC method.

    Attributes:
        exchanges: who answers its calls.
        observer: who counts them.
        ends_with_requests: once the peer sends no more messages, neither do we.
    """

    exchanges: ExchangeFactory
    observer: StreamObserver | None = None
    ends_with_requests: bool = True


class Timer(Protocol):
    def cancel(self) -> None: ...


class ReceiveWindow:
    """What the peer may still send. Topped up when half of it is used, so that updates are few."""

    __slots__ = ("_size", "left")

    def __init__(self, size_bytes: int) -> None:
        self._size = self.left = size_bytes

    def take(self, length: int) -> None:
        """Raises `ConnectionFault` if the peer sent more than it was allowed."""
        self.left -= length
        if self.left < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allowed")

    @property
    def low(self) -> bool:
        return self.left * 2 <= self._size

    def top_up(self) -> int:
        """How much to tell the peer."""
        added, self.left = self._size - self.left, self._size
        return added


class LeanStream:
    """A call from its headers to its end.

    Attributes:
        queue: what is to be sent.
        reader: of a message that frames have cut, while there is one.
        receivable_bytes: what the peer may still send.
        half_closed: the peer sends nothing more.
        spoken: a whole message has come.
        deadline: to be cancelled at the end.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_encoding",
        "_ends_with_requests",
        "_exchange",
        "_max_message_bytes",
        "_observer",
        "_opened_s",
        "deadline",
        "half_closed",
        "queue",
        "reader",
        "receivable_bytes",
        "spoken",
    )

    def __init__(
        self, queue: SendQueue, encoding: bytes, method: Method, options: LeanOptions, clock: Callable[[], float]
    ) -> None:
        """`encoding`: of messages that are flagged as compressed."""
        self.queue = queue
        self.receivable_bytes = options.stream_window_bytes
        self._encoding = encoding
        self._max_message_bytes = options.max_receive_bytes
        self.reader: MessageReader | None = None
        self.half_closed = self.spoken = False
        self.deadline: Timer | None = None
        self._clock = clock
        self._closed = False
        self._ends_with_requests = method.ends_with_requests
        self._exchange: Exchange | None = None
        self._observer = method.observer
        if self._observer is not None:
            self._opened_s = clock()
            self._observer.stream_opened()
        try:
            self._exchange = method.exchanges(queue)
        except Exception:
            self._fail()

    @property
    def unfinished_bytes(self) -> int:
        """Held of a message that has begun and not ended."""
        return 0 if self.reader is None else self.reader.unfinished_bytes

    def drop_unfinished(self) -> None:
        """Forget a message that has begun. What follows would be read as a new one."""
        self.reader = None

    def take_whole(self, data: bytes, start: int, end: int) -> bool:
        """Answer the one message that the bytes between two places are. False if they are anything else."""
        if self.reader is not None:
            return False
        message = whole_message(data, start, end, self._max_message_bytes)
        if message is None:
            return False
        self._answer(message)
        return True

    def receive(self, data: bytes, start: int, end: int) -> None:
        """Of messages, the bytes between two places."""
        queue = self.queue
        if queue.ending is not None:
            return
        if self.reader is None:
            self.reader = MessageReader(self._encoding, self._max_message_bytes)
        try:
            for message in self.reader.feed(data, start, end):
                self._answer(message)
                if queue.ends:
                    return
        except RpcFault as fault:
            queue.end(fault.status, fault.message)
        if not self.reader.unfinished_bytes:
            self.reader = None

    def _answer(self, message: bytes) -> None:
        """Replies are queued; whatever goes wrong ends this stream and no other."""
        exchange, queue = self._exchange, self.queue
        if exchange is None or queue.ending is not None:
            return
        self.spoken = True
        try:
            replies = exchange.receive(message)
            if replies:
                queue.send(replies)
            if exchange.finished:
                queue.end(_OK)
        except ProtocolError:
            queue.end(Status.INVALID_ARGUMENT, "not an ext_proc message")
        except Exception:
            self._fail()

    def half_close(self) -> None:
        """The peer sends nothing more: what is queued is sent, and that is the end."""
        self.half_closed = True
        if self.unfinished_bytes:
            self.queue.end(Status.INTERNAL, "the last message is cut off")
        if self._ends_with_requests:
            self.queue.end(_OK)

    def close(self, status: Status, *, cancelled: bool, lost: bool = False) -> None:
        """The stream is over; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self.deadline is not None:
            self.deadline.cancel()
        if self._observer is not None:
            self._observer.stream_closed(status.text, self._clock() - self._opened_s)
        if self._exchange is not None:
            try:
                self._exchange.closed(cancelled=cancelled, lost=lost)
            except Exception:
                logger.exception("an exchange failed to close")

    def _fail(self) -> None:
        logger.exception("a stream ended by an unexpected error")
        self.queue.end(Status.INTERNAL, "unexpected error")
