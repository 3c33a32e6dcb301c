"""Who serves ext_proc and knows what came of it: this process, or others that work for it."""

import asyncio
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from epp.observe.records import Selection
from epp.server import serving
from epp.server.access_log.service import AccessLogService
from epp.server.admin import plugin_states
from epp.server.drain import Draining
from epp.server.health import HealthState
from epp.server.state import PickerState


class Front(Protocol):
    """
    Attributes:
        draining: all that has open streams.
        failure: why the process has to end, if it has to.
    """

    @property
    def port(self) -> int | None:
        """The TCP port that is bound; `None` before `start`."""

    @property
    def draining(self) -> Sequence[Draining]: ...

    @property
    def failure(self) -> str | None: ...

    async def start(self) -> None:
        """Raises `Problem`."""

    async def stop(self) -> None: ...

    async def collect(self) -> None:
        """Bring the counts of the picker's state up to date."""

    async def describe(self, selection: Selection) -> dict[str, Any]:
        """For the debug page: the ledger, the process, those of the last decisions that are selected."""

    async def plugins(self) -> Mapping[str, Any]:
        """For the debug page: by name, what each plugin keeps."""


class InProcess:
    """This process decides."""

    failure: str | None = None

    def __init__(self, state: PickerState, health: HealthState, rng: random.Random) -> None:
        """Raises `Problem` for a certificate that cannot be used."""
        self._state = state
        options, metrics = state.options, state.metrics
        watching = serving.watching(options, metrics.access_log, state.clock, secrets.token_hex(4))
        exchanges = serving.ExchangeMaker(state.director(rng), options, watching)
        access_logs = AccessLogService(
            watching.access_log.deliver, metrics.access_log, is_wanted=lambda: health.ready or health.draining
        )
        self._transport = serving.transport(options, exchanges, access_logs, health, metrics.streams)
        self.draining = (self._transport, access_logs)

    @property
    def port(self) -> int | None:
        return self._transport.port

    async def start(self) -> None:
        await self._transport.start()

    async def stop(self) -> None:
        await self._transport.stop()
        await asyncio.to_thread(self._state.close)

    async def collect(self) -> None:
        pass

    async def describe(self, selection: Selection) -> dict[str, Any]:
        return await self._state.decided(selection)

    async def plugins(self) -> Mapping[str, Any]:
        return plugin_states(self._state.config.plugins)
