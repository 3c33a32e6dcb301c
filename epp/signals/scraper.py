"""Reading every model server's metrics page, again and again.

Each endpoint has a loop, a connection and a clock of its own, so a page that hangs delays nobody else's. A scrape that
fails changes nothing of what is known: the last values stay in the store and grow older, and whoever reads them decides
what age still counts. They are never set back to 0.

How often a page is read follows from what happens at its server (`epp.signals.pace`). Nobody tells: the scraper looks
at what is in flight as often as it reads a busy page. What was read of a server that rests is current until its next
reading is due, and not longer than until a request is sent there.

Servers that failed last time share a few slots of their own. So however many hang, the healthy ones find a free slot.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from epp.pool.endpoint import Endpoint
from epp.pool.store import EndpointChanges, PoolStore
from epp.signals.engines import Engines
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.fetch import PageConnection
from epp.signals.pace import Census, pause_s
from epp.signals.settings import ScrapeSettings
from epp.signals.source import PageSource
from epp.signals.target import Target

logger = logging.getLogger(__name__)

FAILING_AFTER = 3  # scrapes in a row; a single one that fails is no news

_START_SPREAD_S = 0.0005  # for each of many endpoints that come at once
_JITTER_RATIO = 0.1  # keeps them apart afterwards
_READING_S = 0.1  # what a reading may take before what the one before it told is not current any more
_FAILING_SHARE = 8  # servers that failed last time have one slot for so many of the others


@dataclass(frozen=True, slots=True)
class ScrapeStats:
    """How scraping of one endpoint goes.

    Attributes:
        consecutive_failures: since the last scrape that succeeded.
        last_error: why the latest failed scrape failed; stays when scraping succeeds again.
        last_error_text: the same in a line, as the log has it: `status: HTTP 404`.
        last_duration_s: of the latest scrape, failed or not, without the wait for a slot.
    """

    scrapes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    last_error: ScrapeErrorKind | None = None
    last_error_text: str | None = None
    last_duration_s: float | None = None

    @property
    def failing(self) -> bool:
        return self.consecutive_failures >= FAILING_AFTER

    def after(self, error: ScrapeError | None, duration_s: float) -> "ScrapeStats":
        """With one more scrape, which ended in `error`."""
        failed = error is not None
        return ScrapeStats(
            scrapes=self.scrapes + 1,
            failures=self.failures + failed,
            consecutive_failures=self.consecutive_failures + 1 if failed else 0,
            last_error=self.last_error if error is None else error.kind,
            last_error_text=self.last_error_text if error is None else str(error),
            last_duration_s=duration_s,
        )


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
        self._targets: dict[str, Target] = {}
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

    def _target(self, endpoint: Endpoint) -> Target:
        settings, engine = self._settings, self._engines.of(endpoint)
        url = settings.url(endpoint)
        connection = PageConnection(url, self._ssl_context, settings.timeout_s, settings.max_page_bytes)
        return Target(endpoint, str(url), engine, self._engines.label, PageSource(connection, engine.families))

    # --- when ---------------------------------------------------------------------------------------------------------

    async def _follow_endpoint(self, target: Target, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            while True:
                async with self._slot(target):
                    stats = await self._scrape(target)
                rest_s = self._rest_s(target) * self._rng.uniform(1.0 - _JITTER_RATIO, 1.0 + _JITTER_RATIO)
                await target.nap.take(pause_s(rest_s, stats.last_duration_s or 0.0))
        finally:
            target.source.close()

    def _slot(self, target: Target) -> AbstractAsyncContextManager[None]:
        return self._failing_slots if self._failures(target) else self._slots

    def _failures(self, target: Target) -> int:
        return self._stats[target.endpoint.id].consecutive_failures

    def _rest_s(self, target: Target) -> float:
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

    def _wake(self, target: Target) -> None:
        target.quiet_readings = 0
        now_s = self._clock()
        target.nap.cut_to(max(0.0, target.started_s + self._rest_s(target) - now_s))
        if target.last is not None:
            self._store.update_signals(target.endpoint.id, replace(target.last, current_until_s=None))

    # --- what ---------------------------------------------------------------------------------------------------------

    async def _scrape(self, target: Target) -> ScrapeStats:
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
        after = before.after(failure, self._clock() - started_s)
        self._stats[endpoint.id] = after
        if failure is not None:
            self._on_error(failure.kind)
        if after.failing and not before.failing:
            cause = failure if failure is not None and failure.kind is ScrapeErrorKind.INTERNAL else None
            logger.warning("scraping %s at %s fails: %s", endpoint.id, target.url, failure, exc_info=cause)
        elif before.failing and not after.failing:
            logger.info("scraping %s works again after %d failures", endpoint.id, before.consecutive_failures)
        return after

    async def _read(self, target: Target) -> None:
        endpoint_id = target.endpoint.id
        taken = target.take(await target.source.read())
        if taken.was_restarted:
            logger.info("%s was restarted in place: what its cache held is forgotten", endpoint_id)
        is_quiet = taken.is_quiet and endpoint_id not in self._sent_to
        target.quiet_readings = target.quiet_readings + 1 if is_quiet else 0
        now_s = self._clock()
        due_s = now_s + self._rest_s(target) * (1.0 + _JITTER_RATIO)
        current_until_s = due_s + _READING_S if is_quiet else None
        target.last = replace(taken.signals, scraped_at_s=now_s, current_until_s=current_until_s)
        self._store.update_signals(endpoint_id, target.last)
