"""Which metrics of an engine's page mean what."""

from pydantic import Field

from epp.scheduling.plugin import Extractor, Parameters, Services
from epp.signals.engines import Engines
from epp.signals.mapping import EngineMapping

_SPEC = "`name` or `name{label=value}`; empty: the engine does not have it."


class CustomMetric(Parameters):
    attribute_key: str = Field(min_length=1, description="Name under which scorers and filters find the value.")
    metric_spec: str = Field(min_length=1, description="`name` or `name{label=value}`.")


class EngineConfig(Parameters):
    name: str = Field(
        min_length=1, description="Value of the engine label. A built-in name replaces that engine whole."
    )
    queued_requests_spec: str = Field("", description=_SPEC)
    running_requests_spec: str = Field("", description=_SPEC)
    kv_usage_spec: str = Field("", description=_SPEC)
    lora_spec: str = Field("", description=_SPEC)
    cache_info_spec: str = Field("", description=_SPEC)
    cache_block_size_label_name: str = Field("block_size", description="Label of cacheInfoSpec.")
    cache_num_blocks_label_name: str = Field("num_gpu_blocks", description="Label of cacheInfoSpec.")
    cache_block_size_spec: str = Field("", description=_SPEC)
    cache_num_blocks_spec: str = Field("", description=_SPEC)
    custom_metrics: list[CustomMetric] = Field(
        default_factory=list, description="Ignored: no plugin of this version reads other metrics."
    )


class CoreMetricsExtractorParameters(Parameters):
    engine_label_key: str = Field("llm-d.ai/engine-type", description="Endpoint label that names the engine.")
    default_engine: str = Field("vllm", description="Engine of servers without that label, or with an unknown value.")
    engine_configs: list[EngineConfig] = Field(default_factory=list, description="Engines beside the built-in ones.")


class CoreMetricsExtractor(Extractor):
    """Queue, batch, KV cache, LoRA adapters and cache geometry out of a server's metrics page."""

    plugin_type = "core-metrics-extractor"
    parameters_model = CoreMetricsExtractorParameters

    def __init__(self, name: str, parameters: CoreMetricsExtractorParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        own = [EngineMapping.from_specs(**c.model_dump(exclude={"custom_metrics"})) for c in parameters.engine_configs]
        self.engines = Engines(own, default=parameters.default_engine, label=parameters.engine_label_key)
