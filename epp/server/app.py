"""The composition root: builds every object of the picker from options and configuration, and runs it.

Nothing else in the project constructs what it uses from global knowledge; whoever wants to know what the picker is made
of reads `Picker.__init__` from top to bottom. `state` is what decisions read and write, `front` who serves ext_proc,
`upkeep` what runs in the background. With several processes this is the parent; see `epp.server.workers`.
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

import uvloop

from epp.compiled import build_in_words
from epp.ledger import Ledger
from epp.observe import logs
from epp.observe.records import Selection
from epp.problem import Problem
from epp.server import serving, upkeep
from epp.server.admin import AdminServer
from epp.server.configuration import ConfigText, text_of
from epp.server.drain import Shutdown, drain
from epp.server.files import keep_files_apart
from epp.server.front import Front, InProcess
from epp.server.grpc_transport import health_server
from epp.server.health import HealthState
from epp.server.listen import TcpAddress
from epp.server.options import ServeOptions
from epp.server.outbox import Outbox
from epp.server.state import PickerState
from epp.server.upkeep import Upkeep
from epp.server.workers.parent import Forked, Workers, fork

logger = logging.getLogger(__name__)


def serve(options: ServeOptions) -> int:
    """Run the picker until it is told to stop. Returns the exit code. Raises `Problem` if it cannot start."""
    logs.setup(verbosity=options.verbosity, format=options.log_format)
    configuration = text_of(options.config_file, options.config_text, options.profile)
    forked = fork(options, configuration)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, configuration, forked))
    return 0


async def _serve(options: ServeOptions, configuration: ConfigText, forked: Forked | None) -> None:
    picker = Picker(options, configuration, forked)
    await picker.run()


class Picker:
    """The one process of a picker, or the parent of several."""

    def __init__(self, options: ServeOptions, configuration: ConfigText, forked: Forked | None) -> None:
        """Raises `Problem` for anything in the options or the configuration that cannot work."""
        self._options = options
        rng = random.Random(options.seed)
        outbox = Outbox()
        learns_remotely = options.training_server_url is not None
        ledger = Ledger() if forked is None else Ledger(forked.load)
        on_sample = outbox.add if learns_remotely else None
        self._state = PickerState(options, configuration, time.monotonic, ledger, on_sample)
        keep_files_apart(options, self._state.config)
        self._upkeep = Upkeep(self._state, outbox, rng)
        self._health = HealthState(
            lambda: [*self._state.not_ready(), *self._upkeep.not_ready()],
            lambda: [plugin.name for plugin in self._state.config.plugins if plugin.not_ready() is not None],
        )
        self._front: Front = (
            InProcess(self._state, self._health, rng) if forked is None else Workers(self._state, self._health, forked)
        )
        self._health_server = health_server(
            self._health, [TcpAddress(options.grpc_health_port, "--grpc-health-port", options.host)]
        )
        self._admin = AdminServer(
            TcpAddress(options.metrics_port, "--metrics-port", options.host),
            registry=self._state.registry,
            health=self._health,
            pages=self,
            guard=self._upkeep.guard(),
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and stop. Raises `Problem` if a port cannot be bound."""
        shutdown = Shutdown()
        shutdown.install(asyncio.get_running_loop())
        servers = (self._front, self._health_server, self._admin)
        try:
            for server in servers:
                await server.start()
            self._announce()
            upkeep.collect_seldom()
            background = upkeep.start(self._upkeep.jobs())
            await shutdown.requested.wait()
            self._health.start_draining()
            await self._upkeep.stand_down()
            await drain(
                self._health,
                self._front.draining,
                shutdown,
                drain_timeout_s=self._options.drain_timeout_s,
                grace_s=serving.CLOSING_GRACE_S,
            )
            await upkeep.stop(background)
        finally:
            for server in reversed(servers):
                await server.stop()
        if self._front.failure is not None:
            raise Problem(self._front.failure)
        logger.info("stopped")

    def _announce(self) -> None:
        ports = {"grpc": self._front.port, "health": self._health_server.port, "metrics": self._admin.port}
        logger.info(
            "serving ext_proc on port %s (%s), health on %s, metrics on %s; endpoints: %d; %s; %s",
            ports["grpc"],
            "TLS" if self._options.secure_serving else "plaintext",
            ports["health"],
            ports["metrics"],
            len(self._state.store.snapshot()),
            self._state.config.filename,
            build_in_words(),
        )
        if self._options.ports_file is not None:
            serving.write_ports(self._options.ports_file, ports)

    # --- for the admin pages --------------------------------------------------------------------------------------

    async def collect(self) -> None:
        await self._front.collect()

    async def plugins(self) -> Mapping[str, Any]:
        return await self._front.plugins()

    async def state(self, selection: Selection) -> Mapping[str, Any]:
        now_s = self._state.clock()
        return self._state.describe(self._upkeep.scrape_stats, now_s) | {
            "ready": self._health.ready,
            "not_ready": self._health.reasons(),
            "remote_predictor": self._upkeep.remote_state(now_s),
            "kubernetes": self._upkeep.kubernetes(),
            **await self._front.describe(selection),
        }
