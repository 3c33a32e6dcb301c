"""One endpoint's page from reading to reading: what it said, and whether anything happens there."""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.mapping import EngineMapping, extract, totals
from epp.signals.page import Samples
from epp.signals.restarts import Restarts
from epp.signals.source import PageSource, Reading

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a reading told.

    Attributes:
        signals: without the times of the reading.
        is_quiet: nothing waits or runs, and nothing is other than at the reading before.
        was_restarted: the server is another process than at the reading before.
    """

    signals: EndpointSignals
    is_quiet: bool
    was_restarted: bool


class Target:
    """See the module's text.

    Attributes:
        quiet_readings: in a row, up to now; 0 of a busy server.
        started_s: monotonic seconds at which the latest scrape began.
    """

    def __init__(
        self, endpoint: Endpoint, url: str, engine: EngineMapping, engine_label: str, source: PageSource
    ) -> None:
        self.endpoint = endpoint
        self.url = url
        self._engine = engine
        self.source = source
        self.nap = Nap()
        self.quiet_readings = 0
        self.started_s = -math.inf
        self.last: EndpointSignals | None = None  # as they stand in the store
        self._engine_label = engine_label  # endpoints say by it what engine they run
        self._has_warned = False
        self._restarts = Restarts()
        self._samples: Samples = {}
        self._signals: EndpointSignals | None = None
        self._totals: Mapping[str, float] = {}

    def take(self, reading: Reading) -> Taken:
        """Take what a page said.

        Raises:
            ScrapeError: nothing that is of use.
        """
        samples = reading.page.samples
        if not reading.page.is_metrics:
            raise ScrapeError(ScrapeErrorKind.NOT_METRICS, f"{reading.size_bytes} bytes without a sample")
        before, totals_before = self._signals, self._totals
        if before is None or samples != self._samples:
            signals, grown = extract(self._engine, samples, None), totals(self._engine, samples)
        else:
            signals, grown = before, totals_before
        restarts = self._restarts.count(reading.started_at_s, grown)
        if signals.restarts != restarts:
            signals = replace(signals, restarts=restarts)
        if signals is not before:
            self._warn_of_missing(signals)
        if not samples:
            raise ScrapeError(ScrapeErrorKind.NO_ENGINE_METRICS, f"none of {self._engine.name}")
        was_restarted = before is not None and before.restarts != restarts
        if was_restarted:
            self.source.server_is_new()
        self._samples, self._signals, self._totals = samples, signals, grown
        return Taken(
            signals,
            is_quiet=signals == before
            and grown == totals_before
            and not signals.waiting_requests
            and not signals.running_requests,
            was_restarted=was_restarted,
        )

    def _warn_of_missing(self, signals: EndpointSignals) -> None:
        missing = self._engine.missing(signals)
        if missing and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s at %s has no usable %s; if it is not %s, say by label %s what it is",
                self.endpoint.id,
                self.url,
                ", ".join(missing),
                self._engine.name,
                self._engine_label,
            )


class Nap:
    """A pause that can be cut short."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._timer = loop.call_later(seconds, self._end)
        try:
            await self._over
        finally:
            self._timer.cancel()
            self._over = self._timer = None

    def cut_to(self, seconds: float) -> None:
        """Let it end in so many seconds, if it was to last longer. Without a nap nothing happens."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() > loop.time() + seconds:
            self._timer.cancel()
            self._timer = loop.call_later(seconds, self._end)

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
