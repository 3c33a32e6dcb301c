"""One worker: serves ext_proc on the connections it is handed, and decides with its own copy of everything.

It lives as long as the parent: when their channel ends, so does the worker.
"""

import asyncio
import logging
import os
import pickle
import random
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from epp.latency.model import Model
from epp.ledger import Ledger
from epp.observe import logs
from epp.observe.trace import path_of_worker
from epp.observe.workers import WorkerMetrics
from epp.server import serving, upkeep
from epp.server.access_log.service import AccessLogService
from epp.server.admin import plugin_states
from epp.server.configuration import ConfigText
from epp.server.health import HealthState
from epp.server.lean.limits import LeanOptions
from epp.server.lean.server import LeanServer, lean_server
from epp.server.lean.tls import tls_context
from epp.server.listen import TcpAddress
from epp.server.options import ServeOptions
from epp.server.state import PickerState
from epp.server.workers.batches import Batch, Clockwork
from epp.server.workers.channel import PARENT, Channel, Frame
from epp.server.workers.counts import CountSender
from epp.server.workers.handoff import take_over
from epp.server.workers.messages import Answer, Health, Kind, Learned, Policies, PoolChange, Question, WorkerOrder
from epp.server.workers.pool_feed import follow
from epp.server.workers.records import ForeignRecords
from epp.server.workers.replicas import Changes, Replicas
from epp.server.workers.shared_load import SharedLoad

logger = logging.getLogger(__name__)

ENVOYS_STREAMS = 16
"""Per connection. Envoy fills one before it opens the next, so this is also how unevenly workers may be loaded."""
COUNT_INTERVAL_S = 1.0
SAMPLE_PAUSE_S = 0.05
TAUGHT_WITHIN_S = 10.0


def worker_main(
    options: ServeOptions, configuration: ConfigText, number: int, order: bytes, descriptors: Sequence[int]
) -> None:
    """A worker's life, in a process of its own.

    Args:
        configuration: the same for a worker that comes later, whatever the file holds by then.
        order: a pickled `WorkerOrder`.
        descriptors: of the channel, the handoff, and the memory that all share.
    """
    logs.setup(verbosity=options.verbosity, format=options.log_format, worker=number)
    if options.record_trace is not None:
        options = replace(options, record_trace=path_of_worker(options.record_trace, number))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_live(options, configuration, number, pickle.loads(order), descriptors))


async def _live(
    options: ServeOptions, configuration: ConfigText, number: int, order: WorkerOrder, descriptors: Sequence[int]
) -> None:
    channel, handoff, memory = descriptors
    load = SharedLoad(memory, options.workers, number)
    os.close(memory)
    worker = Worker(options, configuration, number, order, load)
    await worker.run(socket.socket(fileno=channel), socket.socket(fileno=handoff))


class Worker:
    """See the module's text. For use within an event loop."""

    def __init__(
        self, options: ServeOptions, configuration: ConfigText, number: int, order: WorkerOrder, load: SharedLoad
    ) -> None:
        self._number = number
        self._order = order
        self._load = load
        self._channel = channel = Channel(self._take, self._on_parent_gone)
        clockwork = Clockwork(time.monotonic, asyncio.get_running_loop().call_later)
        samples = Batch(partial(channel.send, Kind.SAMPLES), SAMPLE_PAUSE_S, clockwork)
        self._state = PickerState(options, configuration, time.monotonic, Ledger(load), samples.add)
        self._told = Health(["the process has just started"], [], draining=False, stopping=False, suspended=None)
        self._health = HealthState(lambda: self._told.reasons, lambda: self._told.plugins)
        self._model: Model | None = None
        self._taught = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        metrics = self._state.metrics
        self._counts = CountSender(metrics.families)
        self._metrics = WorkerMetrics(metrics.families)
        self._replicas = Replicas(
            self._state.config.plugins, partial(channel.send, Kind.TOLD), self._state.store.snapshot, clockwork
        )
        self._watching = serving.watching(
            options, metrics.access_log, time.monotonic, f"{secrets.token_hex(4)}.{number}"
        )
        self._records = ForeignRecords(self._watching.access_log, number, options.workers, channel.send, clockwork)
        self._access_logs = AccessLogService(self._records.deliver, metrics.access_log)
        self._server = self._make_server()
        self._is_secure = [isinstance(address, TcpAddress) for address in serving.ext_proc_addresses(options)]

    def _make_server(self) -> LeanServer:
        options, state = self._state.options, self._state
        # A life of its own for each worker's chance, and the same again with the same seed.
        seed = None if options.seed is None else f"{options.seed}/{self._number}/{self._order.life}"
        certificate = self._order.certificate or serving.certificates(options)
        return lean_server(
            serving.ExchangeMaker(state.director(random.Random(seed)), options, self._watching),
            (),
            self._health,
            state.metrics.streams,
            access_logs=self._access_logs,
            tls=None if certificate is None else tls_context(certificate),
            options=LeanOptions(max_receive_bytes=options.max_message_bytes, envoys_streams=ENVOYS_STREAMS),
            on_connections=partial(self._channel.send, Kind.CONNECTIONS),
        )

    async def run(self, channel: socket.socket, handoff: socket.socket) -> None:
        """Until the parent says so, or ends."""
        loop = asyncio.get_running_loop()
        await self._server.start()
        await loop.create_unix_connection(lambda: self._channel, sock=channel)
        if self._order.taught:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._taught.wait(), TAUGHT_WITHIN_S)
        handoff.setblocking(False)
        loop.add_reader(handoff, self._take_connections, handoff)
        upkeep.collect_seldom()
        self._tasks = upkeep.start([("counts", self._send_counts())])
        self._channel.send(Kind.READY)
        await self._ended.wait()
        loop.remove_reader(handoff)
        await upkeep.stop(self._tasks)
        await asyncio.to_thread(self._state.close)

    # --- connections --------------------------------------------------------------------------------------------------

    def _take_connections(self, handoff: socket.socket) -> None:
        while (taken := take_over(handoff)) is not None:
            connection, listener = taken
            self._spawn(self._serve(connection, secure=self._is_secure[listener]), "connection")

    async def _serve(self, connection: socket.socket, *, secure: bool) -> None:
        try:
            await self._server.take(connection, secure=secure)
        except OSError:  # it broke, or did not speak TLS
            connection.close()
            self._server.tell_connections()

    def _spawn(self, job: Any, name: str) -> None:
        """Run a short job, known for as long as it runs."""
        (task,) = upkeep.start([(name, job)])
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    # --- what the parent says -----------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.POOL:
                self._follow_pool(frame.open())
            case Kind.HEALTH:
                self._follow_health(frame.open())
            case Kind.POLICIES:
                policies: Policies = frame.open()
                self._state.policies.replace(policies.objectives, policies.rewrites)
            case Kind.LEARNED:
                self._adopt(frame.open())
            case Kind.TOLD:
                self._replicas.absorb(frame.open(), frame.worker)
            case Kind.TAUGHT:
                self._learn(frame.open())
            case Kind.TEACH:
                self._spawn(self._teach(frame.worker), "teaching")
            case Kind.GONE:
                self._replicas.forget_peer(frame.worker)
            case Kind.RECORDS:
                self._records.came_back(frame.open())
            case Kind.SHED:
                self._server.shed(frame.open())
            case Kind.ASK:
                self._answer(frame.open())
            case Kind.DRAIN:
                self._spawn(self._drain(frame.open()), "drain")

    def _follow_pool(self, change: PoolChange) -> None:
        if change.endpoints is not None:
            self._load.assign(change.slots)
            self._state.ledger.publish()
        follow(change, self._state.store)

    def _follow_health(self, health: Health) -> None:
        self._told = health
        self._state.suspended = health.suspended
        if health.stopping and not self._health.stopping:
            self._health.start_stopping()
        elif health.draining and not self._health.draining:
            self._health.start_draining()

    def _adopt(self, learned: Learned) -> None:
        if learned.has_model:
            self._model = learned.state.model
        self._state.predictor.adopt(replace(learned.state, model=self._model), self._state.clock())

    def _learn(self, changes: Changes) -> None:
        if changes:
            self._replicas.absorb(changes, PARENT)
        else:
            self._taught.set()

    async def _teach(self, newcomer: int) -> None:
        def send(changes: Changes) -> None:
            self._channel.send(Kind.TAUGHT, changes, newcomer)

        await self._replicas.teach(send)
        send([])

    async def _drain(self, grace_s: float) -> None:
        await asyncio.gather(self._access_logs.drain(grace_s), self._server.drain(grace_s))
        self._say_counts()
        self._channel.send(Kind.DRAINED)
        self._channel.close()

    def _on_parent_gone(self) -> None:
        self._ended.set()

    # --- what the parent wants to know --------------------------------------------------------------------------------

    async def _send_counts(self) -> None:
        while True:
            self._say_counts()
            await asyncio.sleep(COUNT_INTERVAL_S)

    def _say_counts(self) -> None:
        self._state.metrics.plugins.forget_departed(self._state.store.snapshot())
        self._metrics.measure(self._number)
        self._channel.send(Kind.COUNTS, self._counts.changes())

    def _answer(self, question: Question) -> None:
        match question.what:
            case "counts":
                self._say_counts()
                self._reply(question, None)
            case "state":
                self._spawn(self._describe(question), "description")
            case _:
                self._reply(question, plugin_states(self._state.config.plugins))

    async def _describe(self, question: Question) -> None:
        decided = await self._state.decided(question.selection)
        requests = int(sum(count.value for count in self._state.metrics.requests.total.children.values()))
        self._reply(question, {"requests": requests, **decided})

    def _reply(self, question: Question, content: Any) -> None:
        self._channel.send(Kind.ANSWER, Answer(question.number, content))
