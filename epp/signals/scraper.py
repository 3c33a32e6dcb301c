"""Reading every model server's metrics page, again and again.

Each endpoint has a loop, a connection and a clock of its own, so a page that hangs delays nobody else's. A scrape that
fails changes nothing of what is known: the last values stay in the store and grow older, and whoever reads them decides
what age still counts. They are never set back to 0.

The loops are gentle without being told. A page that took long is left alone for at least as long as it took. That
halves the load on a server that labours and, since the time a scrape waits for our own event loop counts too, on a
picker that labours. A server that fails is asked ever less often, down to about once a second.

Servers that failed last time share a few slots of their own. So however many hang, the healthy ones find a free slot.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from epp.pool.endpoint import Endpoint
from epp.pool.store import EndpointChanges, PoolStore
from epp.signals.engines import Engines
from epp.signals.fetch import ScrapeError, ScrapeErrorKind, fetch_page, open_session
from epp.signals.mapping import EngineMapping, extract, totals
from epp.signals.page import PageReader, unlabelled_value
from epp.signals.restarts import PROCESS_START, Restarts
from epp.signals.settings import ScrapeSettings

logger = logging.getLogger(__name__)

FAILING_AFTER = 3  # scrapes in a row; a single one that fails is no news

_MAX_FIRST_DELAY_S = 0.1  # spreads the starts of many endpoints that come at once
_JITTER_RATIO = 0.1  # keeps them apart afterwards
_MAX_BACKOFF_S = 1.0
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


class _Target:
    """One endpoint's page and what is remembered from one scrape of it to the next."""

    def __init__(self, endpoint: Endpoint, url: URL, engine: EngineMapping, session: aiohttp.ClientSession) -> None:
        self.endpoint = endpoint
        self.url = url
        self.engine = engine
        self.session = session
        self.reader = PageReader(engine.families)
        self.restarts = Restarts()
        self.restarts_seen = 0
        self.warned = False


def pause_s(interval_s: float, stats: ScrapeStats) -> float:
    """From the end of the latest scrape to the beginning of the next, by the rules of the module's text."""
    took_s = stats.last_duration_s or 0.0
    pause = max(interval_s - took_s, took_s)
    if stats.consecutive_failures:
        pause = max(pause, min(interval_s * 2.0 ** min(stats.consecutive_failures, 10), _MAX_BACKOFF_S))
    return pause


class Scraper:
    """Keeps the signals of `store` fresh for as long as `run` runs.

    Args:
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
        clock: Callable[[], float],
        rng: random.Random,
        on_error: Callable[[ScrapeErrorKind], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._ssl_context = settings.ssl_context()
        self._engines = engines
        self._clock = clock
        self._rng = rng
        self._on_error = on_error
        self._stats: dict[str, ScrapeStats] = {}
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
                    del self._stats[endpoint.id]
                for endpoint in (*changes.added, *(after for _, after in changes.changed)):
                    self._stats[endpoint.id] = ScrapeStats()
                    self._loops[endpoint.id] = loops.create_task(self._follow_endpoint(endpoint))

            unsubscribe = self._store.subscribe(follow)
            try:
                await self._stopping.wait()
            finally:
                unsubscribe()
                for loop in self._loops.values():
                    loop.cancel()
                self._loops.clear()

    async def _follow_endpoint(self, endpoint: Endpoint) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, min(self._settings.interval_s, _MAX_FIRST_DELAY_S)))
        async with open_session(self._ssl_context) as session:
            target = _Target(endpoint, self._settings.url(endpoint), self._engines.of(endpoint), session)
            while True:
                async with self._slot(endpoint):
                    stats = await self._scrape(target)
                jitter = self._rng.uniform(1.0 - _JITTER_RATIO, 1.0 + _JITTER_RATIO)
                await asyncio.sleep(pause_s(self._settings.interval_s, stats) * jitter)

    def _slot(self, endpoint: Endpoint) -> AbstractAsyncContextManager[None]:
        return self._failing_slots if self._stats[endpoint.id].consecutive_failures else self._slots

    async def _scrape(self, target: _Target) -> ScrapeStats:
        endpoint = target.endpoint
        started_s = self._clock()
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
        data = await fetch_page(target.session, target.url, self._settings)
        page = target.reader.read(data)
        if not page.is_metrics:
            raise ScrapeError(ScrapeErrorKind.NOT_METRICS, f"{len(data)} bytes without a sample")
        signals = extract(target.engine, page.samples, self._clock())
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
        if not page.samples:
            raise ScrapeError(ScrapeErrorKind.NO_ENGINE_METRICS, f"none of {target.engine.name}")
        restarts = target.restarts.count(unlabelled_value(data, PROCESS_START), totals(target.engine, page.samples))
        if restarts > target.restarts_seen:
            target.restarts_seen = restarts
            logger.info("%s was restarted in place: what its cache held is forgotten", target.endpoint.id)
        self._store.update_signals(target.endpoint.id, replace(signals, restarts=restarts))
