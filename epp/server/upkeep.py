"""What keeps the picker's state true, away from the requests: discovery, scraping, training, gauges."""

import asyncio
import gc
import logging
import random
from collections.abc import Collection, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epp.plugins.core_metrics_extractor import CoreMetricsExtractor
from epp.plugins.metrics_data_source import MetricsDataSource
from epp.pool.file import FileDiscovery
from epp.pool.store import EndpointChanges
from epp.problem import Problem
from epp.server import pool_source
from epp.server.admin_guard import Guard
from epp.server.kubernetes import Kubernetes
from epp.server.outbox import Outbox
from epp.server.state import PickerState
from epp.server.training import Trainer
from epp.signals.engines import Engines
from epp.signals.errors import ScrapeErrorKind
from epp.signals.pace import Pace
from epp.signals.scraper import Scraper, ScrapeStats
from epp.signals.settings import ScrapeSettings

if TYPE_CHECKING:
    from epp.server.remote import RemotePredictor

logger = logging.getLogger(__name__)


class Upkeep:
    """The jobs that run for as long as the process serves. There is one of these, however many processes decide."""

    def __init__(self, state: PickerState, outbox: Outbox, rng: random.Random) -> None:
        """`outbox`: samples for a remote predictor. Raises `Problem` if a part cannot work."""
        self._state = state
        self._options = state.options
        for notice in state.config.notices:
            logger.info("%s", notice)
        source = pool_source.open_source(state, rng)
        self._discovery = source if isinstance(source, FileDiscovery) else None
        self._kube = source if isinstance(source, Kubernetes) else None
        self._scraper = self._make_scraper(rng)
        self._remote = self._make_remote(outbox, rng)
        self._trainer = self._make_trainer()

    # --- building -------------------------------------------------------------------------------------------------

    def _make_scraper(self, rng: random.Random) -> Scraper | None:
        """The reader of metrics pages, if the configuration has a source for them."""
        for entry in self._state.config.sources:
            if isinstance(entry.source, MetricsDataSource):
                extractor = next((e for e in entry.extractors if isinstance(e, CoreMetricsExtractor)), None)
                return self._scraper_of(entry.source, extractor, rng)
        return None

    def _scraper_of(
        self, source: MetricsDataSource, extractor: CoreMetricsExtractor | None, rng: random.Random
    ) -> Scraper:
        parameters = source.parameters
        settings = ScrapeSettings(
            scheme=parameters.scheme,
            path=parameters.path,
            port=parameters.port,
            pace=Pace(parameters.interval_s or self._options.scrape_interval_s, self._options.idle_scrape_interval_s),
            insecure_skip_verify=parameters.insecure_skip_verify,
            ca_cert_path=parameters.ca_cert_path,
            client_cert_path=parameters.client_cert_path,
            client_key_path=parameters.client_key_path,
        )
        engines = Engines() if extractor is None else extractor.engines
        state = self._state

        def in_flight() -> Collection[str]:
            return state.ledger.endpoints_in_flight(state.store.snapshot())

        def count(kind: ScrapeErrorKind) -> None:
            state.metrics.signals.scrape_failed(kind, source.plugin_type, CoreMetricsExtractor.plugin_type)

        try:
            return Scraper(state.store, settings, engines, in_flight, state.clock, rng, count)
        except ValueError as error:
            raise Problem(f"{state.config.filename}: {source.name}: {error}") from error

    def _make_remote(self, outbox: Outbox, rng: random.Random) -> "RemotePredictor | None":
        """Learns with predictors in other processes, if there are any."""
        training_url, model_urls = self._options.training_server_url, self._options.prediction_server_urls
        if not self._state.predicts or (training_url is None and not model_urls):
            return None
        from epp.server.remote import RemotePredictor  # loads XGBoost: now, and not with the first model

        return RemotePredictor(
            self._state.predictor, outbox, self._state.clock, rng, training_url=training_url, model_urls=model_urls
        )

    def _make_trainer(self) -> Trainer | None:
        """Keeps the predictor trained, if the configuration predicts latency and nobody else does it for us."""
        model_file, remote = self._options.model_file, self._remote
        if not self._state.predicts:
            if model_file is not None:
                logger.warning("--model-file has no effect: no predicted-latency-producer is configured")
            return None
        trainer = Trainer(
            self._state.predictor,
            self._state.clock,
            None if model_file is None else Path(model_file),
            wanted=lambda: remote is None or not remote.is_relied_on,
        )
        trainer.restore()
        self._state.store.subscribe(self._forget_departed)
        return trainer

    def _forget_departed(self, changes: EndpointChanges) -> None:
        """Whatever comes back under the same name is another server, as far as its speed goes."""
        for endpoint in changes.removed:
            self._state.predictor.forget(endpoint.id)

    # --- running --------------------------------------------------------------------------------------------------

    def jobs(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Named; each runs until it is cancelled."""
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [("pool gauges", self._refresh_pool_gauges())]
        if self._discovery is not None:
            jobs.append(("discovery", self._discovery.run()))
        if self._kube is not None:
            jobs += self._kube.jobs()
        if self._scraper is not None:
            jobs.append(("scraper", self._scraper.run()))
        if self._trainer is not None:
            jobs.append(("trainer", self._trainer.run()))
        if self._remote is not None:
            jobs.append(("remote predictor", self._remote.run()))
        return jobs

    async def _refresh_pool_gauges(self) -> None:
        interval_s, state = self._options.pool_gauges_interval_s, self._state
        while interval_s > 0:
            now_s = state.clock()
            state.metrics.refresh_pool(state.store.snapshot(), now_s, self._options.staleness_s)
            if self._trainer is not None:
                state.metrics.latency.predictor.refresh(state.predictor, now_s)
            if self._remote is not None:
                state.metrics.latency.predictor.remote_is_relied_on(self._remote.is_relied_on)
            await asyncio.sleep(interval_s)

    async def stand_down(self) -> None:
        """The process is about to end: let another picker lead."""
        if self._kube is not None:
            await self._kube.stand_down()

    # --- telling --------------------------------------------------------------------------------------------------

    def not_ready(self) -> list[str]:
        """Why requests should not come yet, in words."""
        return [] if self._kube is None else self._kube.not_ready()

    def guard(self) -> Guard | None:
        """Who may read the metrics port; `None`: everybody."""
        return None if self._kube is None else self._kube.guard()

    def kubernetes(self) -> dict[str, Any] | None:
        """For the debug page; `None` when the pool does not come from there."""
        return None if self._kube is None else self._kube.describe()

    @property
    def scrape_stats(self) -> Mapping[str, ScrapeStats]:
        """By endpoint id."""
        return {} if self._scraper is None else self._scraper.stats

    def remote_state(self, now_s: float) -> dict[str, Any] | None:
        """For the debug page; `None` without a remote predictor."""
        return None if self._remote is None else self._remote.state(now_s)


def collect_seldom() -> None:
    """To be called when all is built. That lives as long as the process: there is no use in looking through it again.

    Requests leave no cycles either; looking for some every 700 objects, Python's default, took 2 % of the CPU.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def start(jobs: list[tuple[str, Coroutine[Any, Any, None]]]) -> list[asyncio.Task[None]]:
    """Run jobs in the background. One that dies is a bug: requests go on without it, and the log says so."""
    tasks = [asyncio.create_task(job, name=name) for name, job in jobs]
    for task in tasks:
        task.add_done_callback(_report_failure)
    return tasks


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel them and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s stopped by an unexpected error", task.get_name(), exc_info=error)
