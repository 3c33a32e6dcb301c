"""One worker as the parent sees it: through all its lives."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

from epp.observe.records import ALL, Selection
from epp.server.workers.channel import PARENT, Channel, Frame
from epp.server.workers.handoff import hand_over
from epp.server.workers.messages import Answer, Kind, Question

MOST_UNSENT_BYTES = 128 * 2**20
"""A worker that leaves so much unread does nothing any more."""
MOST_UNSENT_CHANGES_BYTES = 8 * 2**20
"""Beyond it, it is not told what its peers come to know: that is worth having, not worth waiting for."""
SILENT_S = 30.0
"""A worker speaks every second. One that was silent for so long hangs, and so do the requests that it has."""

STEADY_AFTER_S = 10.0
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0


class Link:
    """
    Attributes:
        pid: `None`: it does not live.
        ready: it knows the pool and takes connections.
        connections: that it has, by its own word and with those handed over since.
        given: the number of the connection it got last.
        lives: that were begun.
        drained: it has ended all its streams, as it was told.
        lost: nothing more comes from the life that there was.
    """

    def __init__(self, number: int, on_frame: Callable[["Link", Frame], None], clock: Callable[[], float]) -> None:
        self.number = number
        self._on_frame = on_frame
        self._clock = clock
        self.pid: int | None = None
        self.ready = self.drained = False
        self.connections = 0
        self.lives = self.given = 0
        self.lost = asyncio.Event()
        self._short_lives = 0
        self._born_s = self._heard_s = clock()
        self._channel: Channel | None = None
        self._handoff: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    # --- lives --------------------------------------------------------------------------------------------------------

    async def open(self) -> tuple[int, int]:
        """Make the sockets of a new life. Returns the worker's ends of channel and handoff; the caller closes them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._handoff, their_handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._handoff.setblocking(False)
        self.lost = asyncio.Event()
        channel = self._channel = Channel(self._take, self.lost.set)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        self.ready = self.drained = False
        self.connections = 0
        self.lives += 1
        self._born_s = self._heard_s = self._clock()
        return theirs.detach(), their_handoff.detach()

    def ended(self) -> None:
        """The life is over. What it said last may still come; see `lost`."""
        self.pid, self.ready, self.connections = None, False, 0
        if self._handoff is not None:
            self._handoff.close()
            self._handoff = None
        for answer in self._answers.values():
            answer.cancel()
        self._answers.clear()

    def pause_s(self) -> float:
        """After a life: how long to wait before the next. After several short ones in a row, ever longer."""
        if self._clock() - self._born_s >= STEADY_AFTER_S:
            self._short_lives = 0
        self._short_lives += 1
        if self._short_lives == 1:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2.0 ** (self._short_lives - 2), MOST_PAUSE_S))

    @property
    def hangs(self) -> bool:
        """It lives and does nothing."""
        if self.pid is None or self._channel is None:
            return False
        return self._channel.unsent_bytes > MOST_UNSENT_BYTES or self._clock() - self._heard_s > SILENT_S

    # --- talking ------------------------------------------------------------------------------------------------------

    def send(self, kind: Kind, content: Any = None, worker: int = PARENT) -> None:
        if self._channel is not None:
            self._channel.send(kind, content, worker)

    def write(self, frame: bytes) -> None:
        """A frame that is packed already."""
        if self._channel is not None:
            self._channel.write(frame)

    def tell(self, frame: bytes) -> None:
        """The same, unless it has much to read already."""
        if self._channel is not None and self._channel.unsent_bytes < MOST_UNSENT_CHANGES_BYTES:
            self._channel.write(frame)

    def hand_over(self, connection: socket.socket, listener: int) -> bool:
        """False: it does not take it."""
        if self._handoff is None or not hand_over(self._handoff, connection, listener):
            return False
        self.connections += 1
        return True

    async def ask(self, what: str, timeout_s: float, selection: Selection = ALL) -> Any:
        """See `Question`. Raises TimeoutError if there is no answer in time, or never will be."""
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.send(Kind.ASK, Question(number, what, selection))
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except asyncio.CancelledError:
            if answer.cancelled() and self.pid is None:
                raise TimeoutError from None
            raise
        finally:
            self._answers.pop(number, None)

    def _take(self, frame: Frame) -> None:
        self._heard_s = self._clock()
        match frame.kind:
            case Kind.READY:
                self.ready = True
            case Kind.CONNECTIONS:
                self.connections = frame.open()
            case Kind.DRAINED:
                self.drained = True
            case Kind.ANSWER:
                answer: Answer = frame.open()
                waiting = self._answers.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.content)
        self._on_frame(self, frame)
