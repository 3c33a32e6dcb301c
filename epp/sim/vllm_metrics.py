"""A simulated server's metrics page: vLLM's names, labels and text, from the engine's counters."""

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epp.sim.config import EngineConfig
from epp.sim.types import EngineMetrics

GARBAGE_PAGE = (
    b'<html>\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_\xff\x00 NaN NaN\n'
)


class VllmPage(Collector):
    """Turns what `record` was last given into a page. Between records the page stays as it is, that is, grows stale."""

    def __init__(self, model: str, adapters: tuple[str, ...], config: EngineConfig, started_wall_s: float) -> None:
        self._model = model
        self._started_wall_s = started_wall_s
        self._adapters = adapters
        self._config = config
        self._metrics = EngineMetrics()
        self._adapter_states: dict[tuple[str, str], float] = {}
        self._page: bytes | None = None

    def record(self, metrics: EngineMetrics, wall_s: float) -> None:
        """Take the engine's state at Unix time `wall_s`."""
        self._metrics = metrics
        self._page = None
        if self._adapters:
            state = (",".join(metrics.running_adapters), ",".join(metrics.waiting_adapters))
            self._adapter_states[state] = wall_s

    def render(self) -> bytes:
        if self._page is None:
            self._page = generate_latest(self)
        return self._page

    def collect(self) -> Iterator[Metric]:
        m = self._metrics
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            self._started_wall_s,
        )
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", m.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", m.waiting)
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", m.kv_usage_ratio)
        yield self._counter("prefix_cache_queries", "Prefix cache queries, in tokens.", m.prefix_queries_total)
        yield self._counter("prefix_cache_hits", "Prefix cache hits, in tokens.", m.prefix_hits_total)
        yield self._counter("num_preemptions", "Cumulative number of preemptions.", m.preemptions_total)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", m.prompt_tokens_total)
        yield self._counter("prompt_tokens_cached", "Number of cached prompt tokens.", m.prefix_hits_total)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", m.generation_tokens_total)
        success = CounterMetricFamily(
            "vllm:request_success", "Count of processed requests.", labels=["engine", "finished_reason", "model_name"]
        )
        success.add_metric(["0", "length", self._model], m.finished_total)
        success.add_metric(["0", "abort", self._model], m.aborted_total)
        yield success
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Admission attempts rejected by a queue limit.",
            labels=["model_name", "reason"],
        )
        rejections.add_metric([self._model, "max_num_queued_reqs"], m.rejected_total)
        yield rejections
        if self._adapter_states:
            yield self._lora_info()
        yield self._cache_info()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name"])
        family.add_metric(["0", self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["engine", "model_name"])
        family.add_metric(["0", self._model], value)
        return family

    def _lora_info(self) -> Metric:
        """Every state there has been, each with the time it last held: the newest is the one that holds now."""
        labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        family = GaugeMetricFamily("vllm:lora_requests_info", "Running stats on lora requests.", labels=labels)
        for (running, waiting), wall_s in self._adapter_states.items():
            family.add_metric([str(self._config.max_adapters), running, waiting], wall_s)
        return family

    def _cache_info(self) -> Metric:
        config = self._config
        labels = {
            "block_size": str(config.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(config.prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "kv_cache_size_tokens": str(config.kv_blocks * config.block_tokens),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(config.kv_blocks),
            "prefix_caching_hash_algo": "xxh3",
        }
        text = "Information of the LLMEngine CacheConfig"
        family = GaugeMetricFamily("vllm:cache_config_info", text, labels=list(labels))
        family.add_metric(list(labels.values()), 1.0)
        return family
