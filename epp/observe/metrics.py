"""All Prometheus families of the picker, in one object."""

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, ProcessCollector

from epp.inference.request import Request
from epp.ledger import Ledger, Outcome
from epp.observe.access_log import AccessLogMetrics
from epp.observe.cardinality import RequestLabels
from epp.observe.families import Families
from epp.observe.latency import LatencyMetrics
from epp.observe.legacy import BY_MODEL, LegacyCollector, Source, Twin
from epp.observe.pool import InFlightCollector, PoolMetrics, QueueSizeCollector
from epp.observe.requests import RequestMetrics
from epp.observe.scheduling import SchedulingMetrics
from epp.observe.streams import SignalMetrics, StreamMetrics
from epp.pool.snapshot import Snapshot
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial

# Refusals that mean: no endpoint was found for a request that was fit to be sent.
UNPLACED_STATUSES = (429, 503)


class Metrics:
    """One per process. Counting costs a few microseconds; whatever can wait for a scrape does.

    Attributes:
        families: all those that are counted here, but not those that are computed at each scrape.
        plugins: the framework's `Recorder`.
        streams: a transport's observer; `None` when streams are not counted.
        signals: errors of reading signals.
        access_log: Envoy's access log, and responses that are let go of.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        pool_name: str,
        snapshot: Callable[[], Snapshot],
        ledger: Ledger,
        clock: Callable[[], float],
        objectives: Collection[str] = (),
        stream_metrics: bool = False,
        legacy: bool = True,
        build_ref: str = "",
    ) -> None:
        """
        Args:
            pool_name: value of the pool's `name` label.
            snapshot, ledger: read at each scrape.
            clock: monotonic seconds; limits how often a failing plugin is logged.
            objectives: names of objectives that have series of their own.
            stream_metrics: count ext_proc streams.
            legacy: also show families under their older names.
            build_ref: the version that runs, a label of the info gauge.
        """
        self.families = families = Families(registry)
        labels = self._labels = RequestLabels()
        self.requests = RequestMetrics(families, labels)
        self.pool = PoolMetrics(families, pool_name)
        self.plugins = SchedulingMetrics(families, labels, clock)
        self.latency = LatencyMetrics(families, objectives)
        self._observers = {**self.plugins.observers(), **self.latency.observers()}
        self.signals = SignalMetrics(families)
        self.access_log = AccessLogMetrics(families)
        self.streams = StreamMetrics(families) if stream_metrics else None
        self._info = families.gauge("info", "What is running. Always 1.", ("commit", "build_ref"))
        self._info["", build_ref].set(1)  # llm-d's label `commit`: an installed package knows none
        self._queue_sizes = QueueSizeCollector(pool_name, snapshot)
        registry.register(self._queue_sizes)
        registry.register(InFlightCollector(snapshot, ledger))
        ProcessCollector(registry=registry)
        if legacy:
            registry.register(LegacyCollector([*self._twins(), *self.latency.twins()]))

    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None:
        """`seconds`: what the decision took."""
        self.requests.routed(request)
        self.plugins.decided(request.target_model, decision, seconds)
        self.plugins_observed(cycle)

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None:
        self.requests.refused(request, denial, seconds)
        if cycle is not None:
            if denial.status in UNPLACED_STATUSES:
                self.plugins.decided(cycle.request.target_model, None, seconds)
            self.plugins_observed(cycle)

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        self.requests.ended(request, outcome)

    def refresh_pool(self, snapshot: Snapshot, now_s: float, staleness_s: float) -> None:
        """Bring the pool gauges up to date; to be called on a timer."""
        self.pool.refresh(snapshot, now_s, staleness_s)
        self.plugins.forget_departed(snapshot)

    def plugins_observed(self, cycle: Cycle) -> None:
        """Count what plugins left in the cycle, and take it out."""
        if not cycle.observations:
            return
        labels = self._labels.of(cycle.request)
        for seen in cycle.observations:
            observe = self._observers.get(seen.family)
            if observe is None:
                self.plugins.not_a_metric(seen)
            else:
                observe(seen, cycle.request, labels)
        cycle.observations.clear()

    def _twins(self) -> list[Twin]:
        requests, pool, plugins, signals = self.requests, self.pool, self.plugins, self.signals
        objective, inference_pool, extension = "inference_objective_", "inference_pool_", "inference_extension_"
        datalayer = "llm_d_inference_scheduler_datalayer_"
        by_pool = {"name": "name"}

        def same(source: Source, name: str, *labels: str) -> Twin:
            return Twin(source, name, {label: label for label in labels})

        return [
            Twin(requests.total, objective + "request", BY_MODEL | {"priority": "priority"}),
            Twin(requests.errors, objective + "request_error", BY_MODEL | {"error_code": "error_code"}),
            Twin(requests.duration_s, objective + "request_duration_seconds", BY_MODEL),
            Twin(requests.size_bytes, objective + "request_sizes", BY_MODEL),
            Twin(requests.response_bytes, objective + "response_sizes", BY_MODEL),
            Twin(requests.input_tokens, objective + "input_tokens", BY_MODEL),
            Twin(requests.output_tokens, objective + "output_tokens", BY_MODEL),
            Twin(requests.cached_tokens, objective + "prompt_cached_tokens", BY_MODEL),
            same(requests.rewrites, extension + "model_rewrite_decisions", *requests.rewrites.label_names),
            same(requests.running, objective + "running_requests", "model_name"),
            Twin(requests.ntpot_s, objective + "normalized_time_per_output_token_seconds", BY_MODEL),
            Twin(pool.average_kv_cache_usage, inference_pool + "average_kv_cache_utilization", by_pool),
            Twin(pool.average_queue_size, inference_pool + "average_queue_size", by_pool),
            Twin(pool.average_running_requests, inference_pool + "average_running_requests", by_pool),
            Twin(pool.ready_endpoints, inference_pool + "ready_pods", by_pool),
            Twin(
                self._queue_sizes,
                inference_pool + "per_pod_queue_size",
                by_pool | {"model_server_endpoint": "model_server_pod"},
            ),
            same(plugins.decision_s, extension + "scheduler_e2e_duration_seconds"),
            Twin(
                plugins.attempts,
                extension + "scheduler_attempts",
                {
                    "status": "status",
                    "target_model_name": "target_model_name",
                    "endpoint_name": "pod_name",
                    "namespace": "namespace",
                    "port": "port",
                },
            ),
            same(
                plugins.plugin_s,
                extension + "plugin_duration_seconds",
                "extension_point",
                "plugin_type",
                "plugin_name",
            ),
            same(self._info, extension + "info", "commit", "build_ref"),
            same(plugins.prefix_size, extension + "prefix_indexer_size"),
            same(plugins.prefix_hit_ratio, extension + "prefix_indexer_hit_ratio"),
            same(plugins.prefix_hit_bytes, extension + "prefix_indexer_hit_bytes"),
            same(signals.poll_errors, datalayer + "poll_errors", "source_type"),
            same(signals.extract_errors, datalayer + "extract_errors", "source_type", "extractor_type"),
        ]
