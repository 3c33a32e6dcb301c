"""What each inference engine calls the signals, and which engine an endpoint runs."""

from collections.abc import Iterable, Mapping

from epp.pool.endpoint import Endpoint
from epp.signals.mapping import EngineError, EngineMapping, spellings

ENGINE_LABEL = "llm-d.ai/engine-type"
FALLBACK_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
DEFAULT_ENGINE = "vllm"

# Names as llm-d has them, and vLLM's cache usage also by the name it had before. Triton's only number of running
# requests, nv_inference_exec_count, counts executions since the start; as a load it would only ever grow, so what runs
# on Triton is unknown.
BUILT_IN_ENGINES: tuple[EngineMapping, ...] = (
    EngineMapping(
        name="vllm",
        waiting=spellings("vllm:num_requests_waiting"),
        running=spellings("vllm:num_requests_running"),
        kv_usage=spellings("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        lora=spellings("vllm:lora_requests_info"),
        cache_info=spellings("vllm:cache_config_info"),
        totals=spellings("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    ),
    EngineMapping(
        name="sglang",
        waiting=spellings("sglang:num_queue_reqs"),
        running=spellings("sglang:num_running_reqs"),
        kv_usage=spellings("sglang:token_usage"),
        cache_info=spellings("sglang:cache_config_info"),
        block_size_label="page_size",
        blocks_label="num_pages",
        totals=spellings("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    ),
    EngineMapping(
        name="trtllm-serve",
        waiting=spellings("trtllm_num_requests_waiting"),
        running=spellings("trtllm_num_requests_running"),
        kv_usage=spellings("trtllm_kv_cache_utilization"),
        block_size=spellings("trtllm_kv_cache_tokens_per_block"),
        blocks=spellings("trtllm_kv_cache_max_blocks"),
        totals=spellings("trtllm_request_success_total"),
    ),
    EngineMapping(
        name="triton-tensorrt-llm",
        waiting=spellings("nv_trt_llm_request_metrics{request_type=waiting}"),
        running=spellings("nv_trt_llm_request_metrics{request_type=scheduled}"),
        kv_usage=spellings("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
        block_size=spellings("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
        blocks=spellings("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
        totals=spellings("nv_inference_request_success"),
    ),
    EngineMapping(
        name="triton",
        waiting=spellings("nv_inference_pending_request_count"),
        totals=spellings("nv_inference_request_success"),
    ),
)


class Engines:
    """The mappings there are, and which of them each endpoint speaks.

    A mapping of `own` replaces a built-in one of the same name entirely. Endpoints say by label what they run; those
    that say nothing, or a name that is not known, run `default`.

    Raises:
        EngineError: `default` names no mapping, or a name of `own` is there twice or reserved.
    """

    def __init__(
        self, own: Iterable[EngineMapping] = (), *, default: str = DEFAULT_ENGINE, label: str = ENGINE_LABEL
    ) -> None:
        added: dict[str, EngineMapping] = {}
        for mapping in own:
            if mapping.name in ("", "default"):
                raise EngineError(f"an engine cannot be named {mapping.name!r}; name it as its pods' labels do")
            if mapping.name in added:
                raise EngineError(f"engine {mapping.name!r} is there twice; remove one of the two")
            added[mapping.name] = mapping
        self._by_name: Mapping[str, EngineMapping] = {m.name: m for m in BUILT_IN_ENGINES} | added
        if default not in self._by_name:
            raise EngineError(f"default engine {default!r} is not known; known are {', '.join(sorted(self._by_name))}")
        self._default = self._by_name[default]
        self._labels = (label, FALLBACK_ENGINE_LABEL)
        self.label = label

    def of(self, endpoint: Endpoint) -> EngineMapping:
        """The mapping of the engine that `endpoint` runs, by its labels."""
        for label in self._labels:
            if name := endpoint.labels.get(label):
                return self._by_name.get(name, self._default)
        return self._default
