"""Names of headers and metadata that the endpoint picker protocol fixes (Gateway API Inference Extension, llm-d)."""

DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_SCORES = "x-gateway-destination-endpoint-scores"
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
DESTINATION_SUBSET = "x-gateway-destination-endpoint-subset"
DROPPED_REASON = "x-llm-d-request-dropped-reason"

PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
DATA_PARALLEL = "x-data-parallel-host-port"
DATA_PARALLEL_RANK = "x-data-parallel-rank"
KV_CACHE_SOURCE = "x-kv-cache-source-host-port"

# Namespaces of Envoy's metadata.
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"

# What steers routing is ours to say or is meant for us alone: from a client it never reaches a model server.
STRIPPED_FROM_CLIENTS = (
    DESTINATION,
    DESTINATION_SCORES,
    DESTINATION_SERVED,
    DESTINATION_SUBSET,
    DROPPED_REASON,
    PREFILLER,
    ENCODERS,
    DATA_PARALLEL,
    DATA_PARALLEL_RANK,
    KV_CACHE_SOURCE,
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
)
