"""The composition root: builds every object of the process from options and configuration, runs it, and ends it.

Nothing else in the project constructs what it uses from global knowledge; whoever wants to know what the picker is made
of reads `Picker.__init__` from top to bottom.
"""

import asyncio
import gc
import json
import logging
import os
import random
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from epp import __version__
from epp.config.build import build_pipeline
from epp.director import Director, DirectorOptions
from epp.inference.apis import Parsers
from epp.latency.predictor import Predictor
from epp.ledger import Ledger
from epp.observe import logs
from epp.observe.metrics import Metrics
from epp.observe.observer import RequestObserver
from epp.observe.records import DecisionRing
from epp.plugins.core_metrics_extractor import CoreMetricsExtractor
from epp.plugins.metrics_data_source import MetricsDataSource
from epp.plugins.predicted_latency_producer import PredictedLatencyProducer
from epp.pool.store import EndpointChanges, PoolStore
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.server import debug, pool_source
from epp.server.admin import AdminServer
from epp.server.configuration import read_config
from epp.server.drain import Shutdown, drain
from epp.server.exchange import Exchange, ExchangeOptions
from epp.server.grpc_transport import GrpcOptions, ext_proc_server, health_server
from epp.server.health import HealthState
from epp.server.lean.limits import LeanOptions
from epp.server.lean.server import lean_server
from epp.server.lean.tls import tls_context
from epp.server.listen import TcpAddress, UnixAddress
from epp.server.options import ServeOptions
from epp.server.remote import Outbox, RemotePredictor
from epp.server.tls import CertificateDirectory, CertificateSource, grpc_credentials, load_pair, self_signed_now
from epp.server.training import Trainer
from epp.server.transport import Stream, Transport
from epp.signals.engines import Engines
from epp.signals.fetch import ScrapeErrorKind
from epp.signals.scraper import Scraper
from epp.signals.settings import ScrapeSettings
from epp.wire.conversation import Limits

logger = logging.getLogger(__name__)

# After draining, open streams get this long to finish. Long generations are cut off by then; with the recommended
# bootstrap Envoy carries them on without us.
CLOSING_GRACE_S = 60.0


def serve(options: ServeOptions) -> int:
    """Run the picker until it is told to stop. Returns the exit code. Raises `Problem` if it cannot start."""
    logs.setup(verbosity=options.verbosity, format=options.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))
    return 0


async def _serve(options: ServeOptions) -> None:
    picker = Picker(options)
    await picker.run()


class Picker:
    """One picker process."""

    def __init__(self, options: ServeOptions) -> None:
        """Raises `Problem` for anything in the options or the configuration that cannot work."""
        self._options = options
        clock = time.monotonic
        rng = random.Random(options.seed)

        self._ledger = Ledger()
        self._store = PoolStore()
        outbox = Outbox()
        learns_remotely = options.training_server_url is not None
        self._predictor = Predictor(on_sample=outbox.add if learns_remotely else None)
        self._config = read_config(
            options.config_file,
            options.config_text,
            Services(ledger=self._ledger, predictor=self._predictor, timer=time.perf_counter),
            allow_experimental=options.allow_experimental_plugins,
        )
        for notice in self._config.notices:
            logger.info("%s", notice)
        self._discovery = pool_source.fill(self._store, options.endpoints, self._config.discovery)

        registry = CollectorRegistry()
        self._metrics = Metrics(
            registry,
            pool_name=options.pool_name,
            snapshot=self._store.snapshot,
            ledger=self._ledger,
            clock=clock,
            objectives=options.objectives,
            stream_metrics=options.stream_metrics,
            legacy=options.legacy_metrics,
            build_ref=__version__,
        )
        self._ring = DecisionRing()
        self._clock = clock

        self._scraper = self._make_scraper(rng)
        self._remote = self._make_remote(outbox, rng)
        self._trainer = self._make_trainer()
        pipeline = build_pipeline(self._config, self._metrics.plugins, time.perf_counter)
        director = Director(
            pipeline,
            Parsers([parser.plugin_type for parser in self._config.parsers]),
            self._ledger,
            self._store.snapshot,
            RequestObserver(self._metrics, self._ring, clock),
            clock=clock,
            rng=rng,
            options=DirectorOptions(
                objectives=options.objectives, use_subset=options.use_subset, emit_scores=options.emit_scores
            ),
        )
        self._exchanges = ExchangeMaker(director, options)

        self._health = HealthState(self._not_ready)
        self._transport = self._make_transport()
        self._health_server = health_server(
            self._health, [TcpAddress(options.grpc_health_port, "--grpc-health-port", options.host)]
        )
        self._admin = AdminServer(
            TcpAddress(options.metrics_port, "--metrics-port", options.host),
            registry=registry,
            health=self._health,
            state=self._state,
            plugins=self._config.plugins,
        )

    # --- building -------------------------------------------------------------------------------------------------

    def _make_scraper(self, rng: random.Random) -> Scraper | None:
        """The reader of metrics pages, if the configuration has a source for them."""
        for entry in self._config.sources:
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
            interval_s=parameters.interval_s or self._options.scrape_interval_s,
            insecure_skip_verify=parameters.insecure_skip_verify,
            ca_cert_path=parameters.ca_cert_path,
            client_cert_path=parameters.client_cert_path,
            client_key_path=parameters.client_key_path,
        )
        engines = Engines() if extractor is None else extractor.engines

        def count(kind: ScrapeErrorKind) -> None:
            self._metrics.signals.scrape_failed(kind, source.plugin_type, CoreMetricsExtractor.plugin_type)

        try:
            return Scraper(self._store, settings, engines, self._clock, rng, count)
        except ValueError as error:
            raise Problem(f"{self._config.filename}: {source.name}: {error}") from error

    @property
    def _predicts(self) -> bool:
        """Whether the configuration predicts latency."""
        return any(isinstance(plugin, PredictedLatencyProducer) for plugin in self._config.plugins)

    def _make_remote(self, outbox: Outbox, rng: random.Random) -> RemotePredictor | None:
        """Learns with predictors in other processes, if there are any."""
        training_url, model_urls = self._options.training_server_url, self._options.prediction_server_urls
        if not self._predicts or (training_url is None and not model_urls):
            return None
        return RemotePredictor(
            self._predictor, outbox, self._clock, rng, training_url=training_url, model_urls=model_urls
        )

    def _make_trainer(self) -> Trainer | None:
        """Keeps the predictor trained, if the configuration predicts latency and nobody else does it for us."""
        model_file, remote = self._options.model_file, self._remote
        if not self._predicts:
            if model_file is not None:
                logger.warning("--model-file has no effect: no predicted-latency-producer is configured")
            return None
        trainer = Trainer(
            self._predictor,
            self._clock,
            None if model_file is None else Path(model_file),
            wanted=lambda: remote is None or not remote.is_relied_on,
        )
        trainer.restore()
        self._store.subscribe(self._forget_departed)
        return trainer

    def _forget_departed(self, changes: EndpointChanges) -> None:
        """Whatever comes back under the same name is another server, as far as its speed goes."""
        for endpoint in changes.removed:
            self._predictor.forget(endpoint.id)

    def _make_transport(self) -> Transport:
        options = self._options
        addresses: list[TcpAddress | UnixAddress] = [TcpAddress(options.grpc_port, "--grpc-port", options.host)]
        if options.grpc_socket is not None:
            addresses.append(UnixAddress(options.grpc_socket, "--grpc-socket"))
        certificates = self._certificates()
        if options.transport == "lean":
            return lean_server(
                self._exchanges,
                addresses,
                self._health,
                self._metrics.streams,
                tls=None if certificates is None else tls_context(certificates),
                options=LeanOptions(max_receive_bytes=options.max_message_bytes),
            )
        return ext_proc_server(
            self._exchanges,
            addresses,
            self._health,
            self._metrics.streams,
            credentials=None if certificates is None else grpc_credentials(certificates),
            options=GrpcOptions(max_receive_bytes=options.max_message_bytes),
        )

    def _certificates(self) -> CertificateSource | None:
        options = self._options
        if not options.secure_serving:
            return None
        if options.cert_path is None:
            return self_signed_now()
        directory = Path(options.cert_path)
        return CertificateDirectory(directory) if options.enable_cert_reload else load_pair(directory)

    # --- running --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and stop. Raises `Problem` if a port cannot be bound."""
        shutdown = Shutdown()
        shutdown.install(asyncio.get_running_loop())
        servers = (self._transport, self._health_server, self._admin)
        try:
            for server in servers:
                await server.start()
            self._announce()
            gc.freeze()  # what was built so far lives as long as the process: no use in looking through it again
            background = [asyncio.create_task(job, name=name) for name, job in self._background()]
            for task in background:
                task.add_done_callback(_report_failure)
            await shutdown.requested.wait()
            await drain(
                self._health,
                [self._transport],
                shutdown,
                drain_timeout_s=self._options.drain_timeout_s,
                grace_s=CLOSING_GRACE_S,
            )
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        finally:
            for server in reversed(servers):
                await server.stop()
        logger.info("stopped")

    def _background(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        jobs: list[tuple[str, Coroutine[Any, Any, None]]] = [("pool gauges", self._refresh_pool_gauges())]
        if self._discovery is not None:
            jobs.append(("discovery", self._discovery.run()))
        if self._scraper is not None:
            jobs.append(("scraper", self._scraper.run()))
        if self._trainer is not None:
            jobs.append(("trainer", self._trainer.run()))
        if self._remote is not None:
            jobs.append(("remote predictor", self._remote.run()))
        return jobs

    async def _refresh_pool_gauges(self) -> None:
        interval_s = self._options.pool_gauges_interval_s
        while interval_s > 0:
            now_s = self._clock()
            self._metrics.refresh_pool(self._store.snapshot(), now_s, self._options.staleness_s)
            if self._trainer is not None:
                self._metrics.latency.predictor.refresh(self._predictor, now_s)
            if self._remote is not None:
                self._metrics.latency.predictor.remote_is_relied_on(self._remote.is_relied_on)
            await asyncio.sleep(interval_s)

    def _announce(self) -> None:
        ports = {"grpc": self._transport.port, "health": self._health_server.port, "metrics": self._admin.port}
        logger.info(
            "serving ext_proc on port %s (%s), health on %s, metrics on %s; endpoints: %d; %s",
            ports["grpc"],
            "TLS" if self._options.secure_serving else "plaintext",
            ports["health"],
            ports["metrics"],
            len(self._store.snapshot()),
            self._config.filename,
        )
        if self._options.ports_file is not None:
            _write_in_one_step(self._options.ports_file, json.dumps(ports))

    def _not_ready(self) -> list[str]:
        reasons = [f"{p.name}: {reason}" for p in self._config.plugins if (reason := p.not_ready()) is not None]
        return reasons if len(self._store.snapshot()) else ["the pool has no endpoint", *reasons]

    def _state(self) -> Mapping[str, Any]:
        now_s = self._clock()
        stats = {} if self._scraper is None else self._scraper.stats
        return {
            "version": __version__,
            "configuration": self._config.filename,
            "ready": self._health.ready,
            "not_ready": self._health.reasons(),
            "pool": debug.pool_state(self._store.snapshot(), self._ledger, stats, now_s),
            "ledger": debug.ledger_state(self._ledger),
            "process": debug.process_state(),
            "predictor": None if self._trainer is None else self._predictor.state(now_s),
            "remote_predictor": None if self._remote is None else self._remote.state(now_s),
            "decisions": self._ring.render(now_s),
        }


class ExchangeMaker:
    """Makes the exchange of each new stream."""

    def __init__(self, director: Director, options: ServeOptions) -> None:
        self._director = director
        self._options = ExchangeOptions(
            limits=Limits(max_request_body_bytes=options.max_request_body_bytes),
            request_timeout_s=options.request_timeout_s,
        )

    def __call__(self, stream: Stream) -> Exchange:
        loop = asyncio.get_running_loop()
        return Exchange(stream, self._director, self._options, clock=time.monotonic, call_later=loop.call_later)


def _write_in_one_step(file: str, text: str) -> None:
    temporary = f"{file}.{os.getpid()}"
    try:
        Path(temporary).write_text(text)
        os.replace(temporary, file)
    except OSError as error:
        raise Problem(f"{file}: cannot be written (--ports-file): {error.strerror}") from error


def _report_failure(task: asyncio.Task[None]) -> None:
    """A background job that dies is a bug; requests go on without it, and the log says so."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s stopped by an unexpected error", task.get_name(), exc_info=error)
