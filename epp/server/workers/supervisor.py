"""The parent's side: a `Transport` whose streams are served by other processes.

`start` starts the workers, and all of them have to be ready before a connection is taken. From then on one that ends is
replaced: at once, or after a pause that grows while its lives stay short.
"""

import asyncio
import logging
import os
import pickle
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from epp.observe.records import ALL, Selection
from epp.observe.workers import WorkerMetrics
from epp.problem import Problem
from epp.server import upkeep
from epp.server.health import HealthState
from epp.server.serving import ext_proc_addresses
from epp.server.state import PickerState
from epp.server.tls import KeyPair
from epp.server.workers import balance
from epp.server.workers.channel import Frame, packed, with_header
from epp.server.workers.counts import CountReceiver
from epp.server.workers.feeds import Feeds
from epp.server.workers.fork_server import Birth, Death, ForkServer
from epp.server.workers.handoff import Acceptor
from epp.server.workers.link import Link
from epp.server.workers.messages import Kind, WorkerOrder
from epp.server.workers.shared_load import SharedLoad

logger = logging.getLogger(__name__)

FEED_INTERVAL_S = 0.02
LEARNED_INTERVAL_S = 5.0
LOOK_INTERVAL_S = 1.0
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 2.0
KILL_AFTER_S = 10.0  # beyond the grace of open streams


class Supervisor:
    """See the module's text.

    Attributes:
        failure: why the process has to end, if it has to.
    """

    def __init__(
        self,
        state: PickerState,
        health: HealthState,
        fork_server: ForkServer,
        load: SharedLoad,
        memory: int,
        certificate: KeyPair | None,
    ) -> None:
        """
        Args:
            load, memory: the parent's view of the memory that all share, and its descriptor.
            certificate: one for all workers, if they are not to read one themselves.
        """
        self._state = state
        self._fork_server = fork_server
        self._load = load
        self._memory = memory
        self._certificate = certificate
        self._feeds = Feeds(state, health, load)
        self._counts = CountReceiver(state.metrics.families)
        self._metrics = WorkerMetrics(state.metrics.families)
        self._links = [Link(number, self._take, state.clock) for number in range(state.options.workers)]
        self._acceptor = Acceptor(ext_proc_addresses(state.options), self._give)
        self._given = 0
        self._changed = asyncio.Event()  # a worker became ready, or ended
        self._serving = self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._replacements: set[asyncio.Task[None]] = set()
        self.failure: str | None = None

    # --- a transport --------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int | None:
        return self._acceptor.port

    async def start(self) -> None:
        """Raises `CannotListen`, and `Problem` if a worker does not start."""
        self._acceptor.bind()
        asyncio.get_running_loop().add_reader(self._fork_server.fileno(), self._on_news)
        self._feeds.changes()
        for link in self._links:
            self._metrics.declare(link.number)
            await self._begin(link)
        await self._until(lambda: all(link.ready for link in self._links) or self.failure is not None, START_TIMEOUT_S)
        if not all(link.ready for link in self._links):
            raise Problem(f"--workers {len(self._links)}: a worker did not start; the log says why")
        self._serving = True
        self._tasks = upkeep.start(
            [
                ("news to workers", _every(FEED_INTERVAL_S, self._feed)),
                ("latency to workers", _every(LEARNED_INTERVAL_S, self._feed_learned)),
                ("looking after workers", _every(LOOK_INTERVAL_S, self._look)),
            ]
        )
        self._acceptor.start()

    async def drain(self, grace_s: float) -> None:
        self._serving = False
        self._acceptor.stop()
        await upkeep.stop(list(self._replacements))
        self._broadcast(self._feeds.changes())
        self._broadcast([packed(Kind.DRAIN, 0, grace_s)])
        await self._until(lambda: not any(link.pid for link in self._links), grace_s + KILL_AFTER_S)
        for link in self._links:
            if link.pid is not None:
                logger.error("worker %d (process %d) did not end in time: it is killed", link.number, link.pid)
                os.kill(link.pid, signal.SIGKILL)
                link.ended()

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self.drain(0)
            await upkeep.stop(self._tasks)
            asyncio.get_running_loop().remove_reader(self._fork_server.fileno())
            self._fork_server.close()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    # --- lives --------------------------------------------------------------------------------------------------------

    async def _begin(self, link: Link) -> None:
        channel, handoff = await link.open()
        teacher = next((other for other in self._links if other.ready), None)
        order = WorkerOrder(link.lives, teacher is not None, self._certificate)
        try:
            self._fork_server.order(link.number, pickle.dumps(order), [channel, handoff, self._memory])
        except OSError as error:
            self._fail(f"the fork server takes no orders ({error.strerror})")
        finally:
            os.close(channel)
            os.close(handoff)
        self._broadcast(self._feeds.changes())
        for frame in self._feeds.newcomer():
            link.write(frame)
        if teacher is not None:
            teacher.send(Kind.TEACH, None, link.number)

    def _on_news(self) -> None:
        news = self._fork_server.receive()
        if news is None:
            asyncio.get_running_loop().remove_reader(self._fork_server.fileno())
            for link in self._links:
                link.ended()
            self._fail("the fork server has ended, and all workers with it")
            return
        for event in news:
            match event:
                case Birth(worker, pid):
                    self._links[worker].pid = pid
                case Death():
                    self._on_death(self._links[event.worker], event)
        self._changed.set()

    def _on_death(self, link: Link, death: Death) -> None:
        link.ended()
        self._load.wipe(link.number)
        if self._serving:
            logger.warning(
                "worker %d (process %s) ended: %s; it is started anew", link.number, death.pid, _reason(death)
            )
            replacement = asyncio.create_task(self._replace(link), name=f"replacing worker {link.number}")
            self._replacements.add(replacement)
            replacement.add_done_callback(self._replacements.discard)
        elif death.status != 0:
            logger.error("worker %d (process %s) ended: %s", link.number, death.pid, _reason(death))
            self.failure = self.failure or f"worker {link.number} ended"

    async def _replace(self, link: Link) -> None:
        await link.lost.wait()  # what it had said before is heard
        self._counts.gone(link.number)
        self._broadcast([packed(Kind.GONE, link.number, None)])
        await asyncio.sleep(link.pause_s())
        self._metrics.restarts[str(link.number),].inc()
        await self._begin(link)

    def _fail(self, why: str) -> None:
        """Without workers there is nothing to do: end, with an exit code that says so."""
        if self.failure is None:
            self.failure = why
            logger.error("%s", why)
            self._changed.set()
            if self._serving:
                signal.raise_signal(signal.SIGINT)

    # --- what workers say ---------------------------------------------------------------------------------------------

    def _take(self, link: Link, frame: Frame) -> None:
        match frame.kind:
            case Kind.TOLD:
                told = with_header(Kind.TOLD, link.number, frame.payload)
                for other in self._links:
                    if other is not link:
                        other.tell(told)
            case Kind.TAUGHT | Kind.RECORDS:
                if frame.worker < len(self._links):
                    self._links[frame.worker].write(with_header(frame.kind, frame.worker, frame.payload))
            case Kind.COUNTS:
                self._counts.add(link.number, frame.open())
            case Kind.SAMPLES:
                self._feeds.observe(frame.open())
            case Kind.READY:
                logger.info("worker %d (process %s) is ready", link.number, link.pid)
                self._changed.set()

    # --- looking after them -------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        self._broadcast(self._feeds.changes())

    async def _feed_learned(self) -> None:
        frame = self._feeds.learned()
        if frame is not None:
            self._broadcast([frame])

    def _broadcast(self, frames: list[bytes]) -> None:
        for frame in frames:
            for link in self._links:
                link.write(frame)

    async def _look(self) -> None:
        for link in self._links:
            self._metrics.seen(link.number, ready=link.ready, connections=link.connections)
            if link.hangs and link.pid is not None:
                logger.error("worker %d (process %d) does nothing any more: it is killed", link.number, link.pid)
                os.kill(link.pid, signal.SIGKILL)
        if (uneven := balance.to_let_go(self._links)) is not None:
            link, connections = uneven
            link.send(Kind.SHED, connections)

    def _give(self, connection: socket.socket, listener: int) -> bool:
        """To the first worker that takes it."""
        for link in balance.in_turn(self._links):
            if link.hand_over(connection, listener):
                self._given += 1
                link.given = self._given
                return True
        return False

    # --- for pages ----------------------------------------------------------------------------------------------------

    async def ask(self, what: str, selection: Selection = ALL) -> dict[int, Any]:
        """What each worker answers, of those that do; see `Question`."""
        asked = [link for link in self._links if link.ready]
        answers = await asyncio.gather(
            *(link.ask(what, ANSWER_TIMEOUT_S, selection) for link in asked), return_exceptions=True
        )
        return {
            link.number: answer
            for link, answer in zip(asked, answers, strict=True)
            if not isinstance(answer, BaseException)
        }

    def describe(self) -> list[dict[str, Any]]:
        """For the debug page: each worker as the parent sees it."""
        return [
            {
                "worker": link.number,
                "pid": link.pid,
                "ready": link.ready,
                "connections": link.connections,
                "restarts": link.lives - 1,
            }
            for link in self._links
        ]


async def _every(interval_s: float, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        await job()
        await asyncio.sleep(interval_s)


def _reason(death: Death) -> str:
    if death.pid is None:
        return f"it could not be forked ({os.strerror(death.status)})"
    if death.status < 0:
        return f"killed by {signal.Signals(-death.status).name}"
    return f"exit status {death.status}"
