"""Reading every model server's metrics page, again and again.

Each endpoint has a loop, a connection and a clock of its own, so a page that hangs delays nobody else's. A scrape that
fails changes nothing of what is known: the last values stay in the store and grow older, and whoever reads them decides
what age still counts. They are never set back to 0.

How often a page is read follows from what happens at its server (`epp.signals.pace`). Nobody tells: the scraper looks
at what is in flight as often as it reads a busy page. What was read of a server that rests counts as current until its
next reading is due, and not longer than until a request is sent there.

Servers that failed last time share a few slots of their own. So however many hang, the healthy ones find a free slot.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from yarl import URL

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals
from epp.pool.store import EndpointChanges, PoolStore
from epp.signals.engines import Engines
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.fetch import PageConnection
from epp.signals.mapping import EngineMapping, extract, totals
from epp.signals.pace import Census, pause_s
from epp.signals.page import PageReader, Samples, unlabelled_value
from epp.signals.restarts import PROCESS_START, Restarts
from epp.signals.settings import ScrapeSettings

logger = logging.getLogger(__name__)

FAILING_AFTER = 3  # scrapes in a row; a single one that fails is no news

_START_SPREAD_S = 0.0005  # for each of many endpoints that come at once
_JITTER_RATIO = 0.1  # keeps them apart afterwards
_FAILING_SHARE = 8  # servers that failed last time have one slot for so many of the others


@dataclass(frozen=True, slots=True)
class ScrapeStats:
    """How scraping of one endpoint goes.

    Attributes:
        consecutive_failures: since the last scrape that succeeded.
        last_error: why the latest failed scrape failed; stays when scraping succeeds again.
        last_duration_s: of the latest scrape, failed or not, without the wait for a slot.
    """

    scrapes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    last_error: ScrapeErrorKind | None = None
    last_duration_s: float | None = None

    @property
    def failing(self) -> bool:
        return self.consecutive_failures >= FAILING_AFTER

    def after(self, error: ScrapeErrorKind | None, duration_s: float) -> "ScrapeStats":
        """With one more scrape, which ended in `error`."""
        failed = error is not None
        return ScrapeStats(
            scrapes=self.scrapes + 1,
            failures=self.failures + failed,
            consecutive_failures=self.consecutive_failures + 1 if failed else 0,
            last_error=error or self.last_error,
            last_duration_s=duration_s,
        )


class _Nap:
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
        """Let it end in so many seconds, if it was to last longer."""
        if self._timer is None:
            return
        loop = asyncio.get_running_loop()
        if self._timer.when() > loop.time() + seconds:
            self._timer.cancel()
            self._timer = loop.call_later(seconds, self._end)

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class _Target:
    """One endpoint's page and what is remembered from one scrape of it to the next."""

    def __init__(self, endpoint: Endpoint, url: URL, engine: EngineMapping, connection: PageConnection) -> None:
        self.endpoint = endpoint
        self.url = url
        self.engine = engine
        self.connection = connection
        self.reader = PageReader(engine.families)
        self.nap = _Nap()
        self.samples: Samples = {}
        self.signals: EndpointSignals | None = None  # of the latest page, without its times
        self.totals: Mapping[str, float] = {}
        self.quiet_readings = 0
        self.started_s = -math.inf
        self.restarts = Restarts()
        self.warned = False


class Scraper:
    """Keeps the signals of `store` fresh for as long as `run` runs.

    Args:
        in_flight: ids of the endpoints to which we have sent requests that have not ended.
        clock: monotonic seconds; ages are measured by it.
        rng: spreads the scrapes in time.
        on_error: told the kind of every scrape that failed.

    Raises:
        ValueError: a certificate of `settings` cannot be loaded.
    """

    def __init__(
        self,
        store: PoolStore,
        settings: ScrapeSettings,
        engines: Engines,
        in_flight: Callable[[], Collection[str]],
        clock: Callable[[], float],
        rng: random.Random,
        on_error: Callable[[ScrapeErrorKind], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._pace = settings.pace
        self._ssl_context = settings.ssl_context()
        self._engines = engines
        self._in_flight = in_flight
        self._clock = clock
        self._rng = rng
        self._on_error = on_error
        self._stats: dict[str, ScrapeStats] = {}
        self._targets: dict[str, _Target] = {}
        self._census = Census()
        self._sent_to: Collection[str] = ()
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(settings.max_at_once)
        self._failing_slots = asyncio.Semaphore(max(1, settings.max_at_once // _FAILING_SHARE))
        self._stopping = asyncio.Event()

    @property
    def stats(self) -> Mapping[str, ScrapeStats]:
        """By endpoint id, of the endpoints there are now."""
        return dict(self._stats)

    def stop(self) -> None:
        """Make `run` return once every connection is closed."""
        self._stopping.set()

    async def run(self) -> None:
        """Scrape the endpoints of the store, whoever comes and goes, until stopped or cancelled."""
        async with asyncio.TaskGroup() as loops:

            def follow(changes: EndpointChanges) -> None:
                for endpoint in (*changes.removed, *(before for before, _ in changes.changed)):
                    self._loops.pop(endpoint.id).cancel()
                    del self._stats[endpoint.id], self._targets[endpoint.id]
                come = (*changes.added, *(after for _, after in changes.changed))
                for endpoint in come:
                    self._stats[endpoint.id] = ScrapeStats()
                    target = self._targets[endpoint.id] = self._target(endpoint)
                    delay_s = self._rng.uniform(0.0, min(self._pace.interval_s, len(come) * _START_SPREAD_S))
                    self._loops[endpoint.id] = loops.create_task(self._follow_endpoint(target, delay_s))

            unsubscribe = self._store.subscribe(follow)
            watch = loops.create_task(self._watch_traffic())
            try:
                await self._stopping.wait()
            finally:
                unsubscribe()
                watch.cancel()
                for loop in self._loops.values():
                    loop.cancel()
                self._loops.clear()

    def _target(self, endpoint: Endpoint) -> _Target:
        settings = self._settings
        url = settings.url(endpoint)
        connection = PageConnection(url, self._ssl_context, settings.timeout_s, settings.max_page_bytes)
        return _Target(endpoint, url, self._engines.of(endpoint), connection)

    # --- when ---------------------------------------------------------------------------------------------------------

    async def _follow_endpoint(self, target: _Target, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            while True:
                async with self._slot(target):
                    stats = await self._scrape(target)
                rest_s = self._rest_s(target) * self._rng.uniform(1.0 - _JITTER_RATIO, 1.0 + _JITTER_RATIO)
                await target.nap.take(pause_s(rest_s, stats.last_duration_s or 0.0))
        finally:
            target.connection.close()

    def _slot(self, target: _Target) -> AbstractAsyncContextManager[None]:
        return self._failing_slots if self._failures(target) else self._slots

    def _failures(self, target: _Target) -> int:
        return self._stats[target.endpoint.id].consecutive_failures

    def _rest_s(self, target: _Target) -> float:
        return self._pace.rest_s(target.quiet_readings, self._failures(target), self._census)

    async def _watch_traffic(self) -> None:
        """Wake whoever rests and is sent a request; and count who rests."""
        while True:
            self._sent_to = self._in_flight()
            for endpoint_id in self._sent_to:
                target = self._targets.get(endpoint_id)
                if target is not None and target.quiet_readings and not self._failures(target):
                    self._wake(target)
            busy = sum(not t.quiet_readings and not self._failures(t) for t in self._targets.values())
            self._census = Census(busy, len(self._targets) - busy)
            await asyncio.sleep(self._pace.interval_s)

    def _wake(self, target: _Target) -> None:
        target.quiet_readings = 0
        now_s = self._clock()
        target.nap.cut_to(max(0.0, target.started_s + self._rest_s(target) - now_s))
        if target.signals is not None:
            self._store.update_signals(target.endpoint.id, replace(target.signals, current_until_s=now_s))

    # --- what ---------------------------------------------------------------------------------------------------------

    async def _scrape(self, target: _Target) -> ScrapeStats:
        endpoint = target.endpoint
        started_s = target.started_s = self._clock()
        failure: ScrapeError | None = None
        try:
            await self._read(target)
        except ScrapeError as error:
            failure = error
        except Exception as error:
            failure = ScrapeError(ScrapeErrorKind.INTERNAL, type(error).__name__)
            failure.__cause__ = error
        before = self._stats[endpoint.id]
        after = before.after(None if failure is None else failure.kind, self._clock() - started_s)
        self._stats[endpoint.id] = after
        if failure is not None:
            self._on_error(failure.kind)
        if after.failing and not before.failing:
            cause = failure if failure is not None and failure.kind is ScrapeErrorKind.INTERNAL else None
            logger.warning("scraping %s at %s fails: %s", endpoint.id, target.url, failure, exc_info=cause)
        elif before.failing and not after.failing:
            logger.info("scraping %s works again after %d failures", endpoint.id, before.consecutive_failures)
        return after

    async def _read(self, target: _Target) -> None:
        data = await target.connection.fetch()
        page = target.reader.read(data)
        if not page.is_metrics:
            raise ScrapeError(ScrapeErrorKind.NOT_METRICS, f"{len(data)} bytes without a sample")
        now_s = self._clock()
        signals, target_totals = self._extract(target, page.samples, now_s)
        restarts = target.restarts.count(unlabelled_value(data, PROCESS_START), target_totals)
        before = target.signals
        signals = replace(signals, restarts=restarts)
        if before is not None and before.restarts != restarts:
            logger.info("%s was restarted in place: what its cache held is forgotten", target.endpoint.id)
        is_quiet = (
            before is not None
            and not signals.waiting_requests
            and not signals.running_requests
            and target_totals == target.totals
            and signals == replace(before, scraped_at_s=now_s, current_until_s=None)
            and target.endpoint.id not in self._sent_to
        )
        target.quiet_readings = target.quiet_readings + 1 if is_quiet else 0
        if is_quiet:
            until_s = now_s + self._pace.rest_s(target.quiet_readings, 0, self._census) * (1.0 + _JITTER_RATIO)
            signals = replace(signals, current_until_s=until_s)
        target.signals, target.samples, target.totals = signals, page.samples, target_totals
        self._store.update_signals(target.endpoint.id, signals)

    def _extract(self, target: _Target, samples: Samples, now_s: float) -> tuple[EndpointSignals, Mapping[str, float]]:
        """What the samples of a page say, and its totals. Of a page that says what the one before said, the same."""
        if samples == target.samples and target.signals is not None:
            return replace(target.signals, scraped_at_s=now_s, current_until_s=None), target.totals
        signals = extract(target.engine, samples, now_s)
        missing = target.engine.missing(signals)
        if missing and not target.warned:
            target.warned = True
            logger.warning(
                "%s at %s has no usable %s; if it is not %s, say by label %s what it is",
                target.endpoint.id,
                target.url,
                ", ".join(missing),
                target.engine.name,
                self._engines.label,
            )
        if not samples:
            raise ScrapeError(ScrapeErrorKind.NO_ENGINE_METRICS, f"none of {target.engine.name}")
        return signals, totals(target.engine, samples)
