"""Names of headers and metadata that the endpoint picker protocol fixes (Gateway API Inference Extension, llm-d)."""

from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
DESTINATION_SCORES: Final = "x-gateway-destination-endpoint-scores"
DESTINATION_SERVED: Final = "x-gateway-destination-endpoint-served"
DESTINATION_SUBSET: Final = "x-gateway-destination-endpoint-subset"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"

PREFILLER: Final = "x-prefiller-host-port"
ENCODERS: Final = "x-encoder-hosts-ports"
DATA_PARALLEL: Final = "x-data-parallel-host-port"
DATA_PARALLEL_RANK: Final = "x-data-parallel-rank"
KV_CACHE_SOURCE: Final = "x-kv-cache-source-host-port"

# What clients say to the picker: current name first, then the older one. A present current name hides the older one,
# even when it is empty or cannot be read.
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
TTFT_TARGET: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_TARGET: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
VIDEO_FPS: Final = "x-llm-d-video-fps"
VIDEO_DURATION: Final = "x-llm-d-video-duration-seconds"
VIDEO_RESOLUTION: Final = "x-llm-d-video-resolution"

# Namespaces of Envoy's metadata.
LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

# Ours, between the picker and an Envoy set up like envoy/recommended.yaml. In the namespace of routing: Envoy's promise
# of access log records, and how often they come while a request runs (`10s`). In one that is not sent to us: the rest.
ACCESS_LOG: Final = "x-headroom-access-log"
HEADROOM_NAMESPACE: Final = "headroom"
WATCHED_REQUEST_ID: Final = "request_id"  # what we call the request there
USAGE_PROMPT_TOKENS: Final = "prompt_tokens"
USAGE_COMPLETION_TOKENS: Final = "completion_tokens"
USAGE_CACHED_TOKENS: Final = "cached_tokens"

# What steers routing is ours to say or is meant for us alone: from a client it never reaches a model server.
STRIPPED_FROM_CLIENTS: Final = (
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
    *OBJECTIVE,
    *FAIRNESS_ID,
    *MODEL_REWRITE,
    *TTFT_TARGET,
    *TPOT_TARGET,
    VIDEO_FPS,
    VIDEO_DURATION,
    VIDEO_RESOLUTION,
)
