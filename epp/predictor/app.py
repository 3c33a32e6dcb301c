"""The predictor server's process: builds every object from its options, serves, and ends. A composition root."""

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from epp.files import READABLE, keep_apart, require_replaceable, write_atomically
from epp.latency.predictor import Predictor
from epp.observe import logs
from epp.predictor.api import PredictorApi
from epp.predictor.service import PredictionService
from epp.problem import Problem
from epp.server.drain import Shutdown
from epp.server.listen import TcpAddress
from epp.server.outbox import Outbox
from epp.server.remote import RemotePredictor, new_client
from epp.server.training import Trainer

logger = logging.getLogger(__name__)

CLOSING_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class PredictorServerOptions:
    """
    Attributes:
        training_port, prediction_port: both serve the same; 0 takes any free one, `None` none.
        model_file: where what was learned survives a restart; `None` keeps it in memory.
        training_server_url: another of our servers that trains; `None`: we do.
        quantile: what answers are bounds at; `None`: they are means.
        ports_file: where the ports really bound are written as JSON, once serving.
    """

    host: str = "0.0.0.0"
    training_port: int | None = 8000
    prediction_port: int | None = 8001
    model_file: str | None = None
    training_server_url: str | None = None
    quantile: float | None = 0.9
    ports_file: str | None = None
    verbosity: int = 2
    log_format: str = "json"


def serve(options: PredictorServerOptions) -> int:
    """Run until told to stop. Returns the exit code. Raises `Problem` if it cannot start."""
    logs.setup(verbosity=options.verbosity, format=options.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))
    return 0


async def _serve(options: PredictorServerOptions) -> None:
    shutdown = Shutdown()
    shutdown.install(asyncio.get_running_loop())
    async with PredictorServer(options) as server:
        if options.ports_file is not None:
            server.tell_ports(Path(options.ports_file))
        await shutdown.requested.wait()
    logger.info("stopped")


class PredictorServer:
    """An async context manager: serves, trains and keeps its model while it is entered.

    Attributes:
        ports: by name, `training` and `prediction`, those that are bound.
    """

    def __init__(self, options: PredictorServerOptions) -> None:
        """Raises `Problem` where one file would be written over the other, or where one cannot be written."""
        written = [("--model-file", options.model_file), ("--ports-file", options.ports_file)]
        keep_apart(written)
        require_replaceable(written)
        self._options = options
        clock = time.monotonic
        outbox = Outbox()
        url = options.training_server_url
        predictor = Predictor()
        self._remote = (
            None if url is None else RemotePredictor(predictor, outbox, clock, random.Random(), training_url=url)
        )
        remote = self._remote
        self._trainer = Trainer(
            predictor,
            clock,
            None if options.model_file is None else Path(options.model_file),
            wanted=lambda: remote is None or not remote.is_relied_on,
        )
        self._trainer.restore()
        service = PredictionService(
            predictor,
            clock,
            lambda: datetime.now(UTC),
            options.quantile,
            hand_on=None if url is None else outbox.add,
        )
        self._api = PredictorApi(service, clock, reload=None if remote is None else self._pull, training_server_url=url)
        self.ports: dict[str, int] = {}
        self._exit = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "PredictorServer":
        """Raises `CannotListen`."""
        async with contextlib.AsyncExitStack() as stack:
            runner = web.AppRunner(self._api.app(), access_log=None, shutdown_timeout=CLOSING_GRACE_S)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            for name, port in (
                ("training", self._options.training_port),
                ("prediction", self._options.prediction_port),
            ):
                if port is not None:
                    self.ports[name] = await _listen(runner, TcpAddress(port, f"--{name}-port", self._options.host))
            jobs: list[Coroutine[Any, Any, None]] = [self._trainer.run()]
            if self._remote is not None:
                jobs.append(self._remote.run())
            tasks = [asyncio.create_task(job) for job in jobs]
            stack.push_async_callback(_cancel, tasks)
            self._exit = stack.pop_all()
        logger.info("serving predictions on %s", ", ".join(f"{port} ({name})" for name, port in self.ports.items()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def _pull(self) -> bool:
        if self._remote is None:
            return False
        async with new_client() as client:
            return await self._remote.pull(client)

    def tell_ports(self, path: Path) -> None:
        """Raises `Problem`."""
        try:
            write_atomically(path, json.dumps(self.ports).encode(), READABLE)
        except OSError as error:
            raise Problem(f"{path}: cannot be written (--ports-file): {error.strerror}") from error


async def _listen(runner: web.AppRunner, address: TcpAddress) -> int:
    address.check_free()
    before = len(runner.addresses)
    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError as error:  # somebody took it since it was checked
        raise address.cannot_listen(error) from error
    port: int = runner.addresses[before][1]
    return port


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            logger.error("a background job stopped by an unexpected error", exc_info=outcome)
