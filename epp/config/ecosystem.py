"""The plugin types that llm-d's router knows.

So that a configuration written for it is told apart from a typing error: a type of this list that we do not have is
"not available in this version", any other is "not registered".
"""

_TYPES = """
queue-scorer running-requests-size-scorer kv-cache-utilization-scorer load-aware-scorer lora-affinity-scorer
active-request-scorer token-load-scorer prefix-cache-scorer precise-prefix-cache-scorer no-hit-lru-scorer
latency-scorer session-affinity-scorer topology-affinity-scorer header-label-affinity-scorer
endpoint-attribute-scorer mm-embeddings-cache-scorer context-length-aware multicluster-queue-scorer
multicluster-kv-cache-utilization-scorer multicluster-prefix-cache-scorer

decode-filter prefill-filter encode-filter label-selector-filter by-label-selector by-label
prefix-cache-affinity-filter slo-headroom-tier-filter utilization-filter endpoint-attribute-filter
topology-affinity-filter session-affinity-filter multicluster-session-affinity-filter header-based-testing-filter

max-score-picker random-picker weighted-random-picker

single-profile-handler disagg-profile-handler pd-profile-handler disagg-headers-handler prefill-header-handler
data-parallel-profile-handler header-profile-handler always-disagg-pd-decider prefix-based-pd-decider
always-disagg-multimodal-decider

token-producer tokenizer approx-prefix-cache-producer multicluster-approx-prefix-cache-producer
precise-prefix-cache-producer inflight-load-producer predicted-latency-producer burst-prefix-cache-producer
mm-embeddings-cache-producer session-id-producer p2p-source-producer

latency-slo-admitter probabilistic-admitter disaggregatedset-rollout-screener request-attribute-reporter
agent-identity destination-endpoint-served-verifier

openai-parser anthropic-parser vllmhttp-parser passthrough-parser vllmgrpc-parser sglanghttp-parser vertexai-parser

global-strict-fairness-policy round-robin-fairness-policy program-aware-fairness fcfs-ordering-policy
edf-ordering-policy slo-deadline-ordering-policy static-usage-limit-policy priority-holdback-policy
soft-reflective-ceiling-policy sheddable-eviction-filter priority-then-time-eviction-order-policy
utilization-detector concurrency-detector

metrics-data-source models-data-source k8s-notification-source endpoint-notification-source dcgm-data-source
multicluster-metrics-data-source core-metrics-extractor models-data-extractor dcgm-extractor topology-extractor
multicluster-metrics-extractor file-discovery multicluster-file-discovery
"""

KNOWN_TYPES = frozenset(_TYPES.split())
