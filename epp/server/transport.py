"""The seam between bytes on a connection and the exchange that answers them.

A transport owns connections and streams; it knows nothing of ext_proc. For each stream it asks a factory for an
exchange, hands it every message as bytes and sends what comes back. An exchange is synchronous: no await, no task, so
the same exchange runs under any transport, and in tests under none.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Stream(Protocol):
    """What an exchange may do to its stream of its own accord. For the event loop's thread only."""

    def send(self, replies: Sequence[bytes]) -> None:
        """Queue messages behind those already queued. After the stream has ended this does nothing."""

    def finish(self) -> None:
        """End the stream with OK once everything queued is sent. Messages that still come in are dropped."""

    def afterwards(self, action: Callable[[], None]) -> None:
        """Do this once the replies to what has been read are written, before anything else is read: work that no reply
        has to wait for. It is done exactly once, however the stream ends; it must not raise.

        What comes in one read is answered in one write. So a message right behind may be answered before it is done:
        what another decision must not miss does not belong here. That a request has ended is seen one read later.
        """


class Exchange(Protocol):
    """One stream's owner."""

    @property
    def finished(self) -> bool:
        """Nothing more will be said: the transport ends the stream with OK once the replies are sent."""

    def receive(self, data: bytes) -> list[bytes]:
        """Take one message, return the replies that are due. `ProtocolError` ends the stream as INVALID_ARGUMENT."""

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        """The stream is over. Called exactly once.

        Args:
            cancelled: the peer reset the stream or the connection is gone. False: the peer half-closed, or we ended it.
            lost: the connection is gone, so nothing is known of how the exchange went on. A transport that cannot tell
                this from a reset leaves it False.
        """


ExchangeFactory = Callable[[Stream], Exchange]


class StreamObserver(Protocol):
    """Who counts streams. Called inline: must be quick and must not raise."""

    def stream_opened(self) -> None: ...

    def stream_closed(self, code: str, duration_s: float) -> None:
        """`code`: the gRPC status as text, e.g. `OK`, `Canceled`, `InvalidArgument`."""


class Transport(Protocol):
    """A server of ext_proc streams."""

    @property
    def port(self) -> int | None:
        """The TCP port that is bound (the real one when 0 was asked for); `None` before `start` or without TCP."""

    async def start(self) -> None:
        """Bind and serve. Raises `epp.server.listen.CannotListen`."""

    async def drain(self, grace_s: float) -> None:
        """Take no new streams, let open ones finish for `grace_s` seconds, then cut them off."""

    async def stop(self) -> None:
        """Cut everything off now."""
