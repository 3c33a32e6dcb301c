"""How the process ends: readiness first, so that nobody sends more; then wait; then close, within a bound."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from epp.server.health import HealthState

logger = logging.getLogger(__name__)


class Draining(Protocol):
    """Whatever has open streams. As of `epp.server.transport.Transport`."""

    async def drain(self, grace_s: float) -> None: ...

    async def stop(self) -> None: ...


class Shutdown:
    """What signals ask for. SIGTERM: drain, then stop. SIGINT, or a second SIGTERM: stop soon."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGTERM, self.request)
        loop.add_signal_handler(signal.SIGINT, self.hurry)

    def request(self) -> None:
        if self.requested.is_set():
            self.hurried.set()
        self.requested.set()

    def hurry(self) -> None:
        self.hurried.set()
        self.requested.set()


async def drain(
    health: HealthState,
    transports: Sequence[Draining],
    shutdown: Shutdown,
    *,
    drain_timeout_s: float,
    grace_s: float,
) -> None:
    """Run after `shutdown.requested`. Returns when every stream has ended or was cut off.

    For `drain_timeout_s` streams are still taken, while proxies learn that we are not ready. Then open streams have
    `grace_s` to finish. A hurried shutdown skips both.
    """
    health.start_draining()
    if not shutdown.hurried.is_set():
        logger.info("draining: not ready any more, still serving for %g s", drain_timeout_s)
    with suppress(TimeoutError):
        await asyncio.wait_for(shutdown.hurried.wait(), drain_timeout_s)
    health.start_stopping()
    logger.info("closing: open streams have %g s to finish", 0.0 if shutdown.hurried.is_set() else grace_s)
    closing = asyncio.gather(*(transport.drain(grace_s) for transport in transports))
    hurried = asyncio.ensure_future(shutdown.hurried.wait())
    await asyncio.wait((closing, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    await asyncio.gather(*(transport.stop() for transport in transports))
    await closing
