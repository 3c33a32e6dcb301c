"""Configurations as they are written for llm-d, loaded with the real plugins, and deciding."""

import random
from typing import Any

import pytest

from epp.config.build import build_pipeline
from epp.config.defaults import DEFAULT_CONFIG
from epp.config.describe import describe
from epp.config.ecosystem import KNOWN_TYPES
from epp.config.errors import ConfigError
from epp.config.resolve import load_config
from epp.inference.request import Api, Prompt, Request
from epp.ledger import Ledger
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Plugin, Services
from epp.scheduling.registry import Registry

SAMPLES = {
    "built-in default": DEFAULT_CONFIG,
    "envelope only": "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n",
    "chart default": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters:
    scheme: "http"
    path: "/metrics"
    insecureSkipVerify: true
- type: core-metrics-extractor
  parameters:
    defaultEngine: "sglang"
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
""",
    "chart default with the latency predictor": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters:
    scheme: "http"
    path: "/metrics"
    insecureSkipVerify: true
- type: core-metrics-extractor
- type: predicted-latency-producer
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters:
    affinityThreshold: 0.99
    ttftSource: latencyPredictor
    maxTTFTPenaltyMs: 5000
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters:
    affinityThreshold: 0.80
    ttftSource: latencyPredictor
    maxTTFTPenaltyMs: 5000
- type: latency-scorer
- type: weighted-random-picker
- type: slo-headroom-tier-filter
- type: latency-slo-admitter
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: predicted-latency-producer
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
""",
    "every parameter of the latency chain": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
  parameters:
    samplingMean: 1000
    maxDecodeTokenSamplesForPrediction: 0
    sloBufferFactor: 1
    contextTTL: 300000000000
    streamingMode: true
    endpointRoleLabel: llm-d.ai/role
    predictInProduce: true
    prefixMatchInfoProducerName: approx-prefix-cache-producer
    inFlightLoadProducerName: inflight-load-producer
    useEncoderCacheFeatures: false
    encoderCacheMatchInfoProducerName: ""
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 1, explorationProbability: 0, maxTTFTPenaltyMs: 0, peakPrefillThroughput: 15928}
- type: slo-headroom-tier-filter
  parameters: {epsilonExploreNeg: 0.01, latencyPredictionInfoProducerName: predicted-latency-producer}
- type: latency-scorer
  parameters:
    ttftWeight: 0.8
    tpotWeight: 0.2
    headroomSelectionStrategy: least
    compositeKVWeight: 1
    compositeQueueWeight: 1
    compositePrefixWeight: 1
    latencyPredictionInfoProducerName: predicted-latency-producer
    prefixMatchInfoProducerName: approx-prefix-cache-producer
- type: latency-slo-admitter
  parameters: {latencyPredictionInfoProducerName: predicted-latency-producer}
- type: probabilistic-admitter
  parameters: {queueDepthThreshold: 5, kvCacheUtilThreshold: 0.8, power: 5, k: 300}
- type: weighted-random-picker
  parameters: {maxNumOfEndpoints: 2}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: slo-headroom-tier-filter}
  - {pluginRef: latency-scorer, weight: 1}
  - {pluginRef: weighted-random-picker}
""",
    "optimized baseline": """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: no-hit-lru-scorer
  parameters: {lruSize: 2048}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.0}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: no-hit-lru-scorer, weight: 2}
""",
    "tiered prefix cache": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: approx-prefix-cache-producer
  name: cpu-prefix-cache-producer
  parameters: {autoTune: false, lruCapacityPerServer: 1000}
- type: approx-prefix-cache-producer
  name: gpu-prefix-cache-producer
- type: prefix-cache-scorer
  name: gpu-prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: gpu-prefix-cache-producer}
- type: prefix-cache-scorer
  name: cpu-prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: cpu-prefix-cache-producer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: gpu-prefix-cache-scorer, weight: 1.0}
  - {pluginRef: cpu-prefix-cache-scorer, weight: 1.0}
""",
    "minimal": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-scorer
- type: decode-filter
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - pluginRef: max-score-picker
  - pluginRef: prefix-cache-scorer
    weight: 2
""",
    "load aware, approximate prefix": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: approx-prefix-cache-producer
  parameters: {autoTune: false, blockSizeTokens: 64, maxPrefixTokensToMatch: 16384}
- type: prefix-cache-scorer
- type: load-aware-scorer
  parameters: {threshold: 100}
- type: token-producer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 1}
  - {pluginRef: load-aware-scorer, weight: 1}
""",
    "payload agnostic": """
{
\t"apiVersion": "llm-d.ai/v1alpha1",
\t"kind": "EndpointPickerConfig",
\t"plugins": [
\t\t{"type": "passthrough-parser"}, {"type": "active-request-scorer"}, {"type": "session-affinity-scorer"}
\t],
\t"requestHandler": {"parsers": [{"pluginRef": "passthrough-parser"}]},
\t"schedulingProfiles": [{"name": "default", "plugins": [
\t\t{"pluginRef": "active-request-scorer", "weight": 1}, {"pluginRef": "session-affinity-scorer", "weight": 1}
\t]}]
}
""",
    "four scorers without weights, old places": """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
parser: {pluginRef: openai-parser}
saturationDetector: {pluginRef: utilization-detector}
plugins:
- type: utilization-detector
  parameters: {queueDepthThreshold: 999999999, kvCacheUtilThreshold: 1.0, metricsStalenessThreshold: 200ms}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: lora-affinity-scorer
- type: openai-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: lora-affinity-scorer
  - pluginRef: openai-parser
""",
    "random only": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
""",
    "no profiles, no sections": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: label-selector-filter
  parameters: {matchLabels: {tier: fast}}
- type: token-load-scorer
- type: running-requests-size-scorer
- type: weighted-random-picker
""",
    "flow control settings without the gate": """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 132}}
- {type: queue-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
flowControl:
  maxBytes: 10Gi
  maxRequests: 1k
  defaultRequestTTL: 60s
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands: [{priority: 100}, {priority: 0}, {priority: -10, maxBytes: 1Gi}]
""",
}


class Failures:
    """A recorder that keeps what went wrong."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def record(self, extension_point: str, plugin: Plugin, seconds: float) -> None:
        pass

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.seen.append(f"{extension_point} {plugin.name}: {error!r}")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover()


def requests() -> list[Request]:
    text = b"You are a helpful assistant. " * 100
    return [
        Request(id="chat", api=Api.CHAT, model="m", target_model="m", prompts=(Prompt((text,)),), body_bytes=len(text)),
        Request(id="opaque", path="/anything"),
        Request(id="bodyless", path="/v1/models", generates=False),
        Request(id="sheddable", priority=-1, model="m", target_model="m", prompts=(Prompt((b"hi",)),)),
    ]


def candidates() -> Candidates:
    labels = {"tier": "fast"}
    endpoints = tuple(Endpoint("default", f"pod-{i}", f"10.0.0.{i + 1}", 8000, labels=labels) for i in range(4))
    idle = EndpointSignals(0.0, 0.0, 0.0, 16, 1000, None, 0.0)
    return Candidates.all_of(Snapshot.build(endpoints, {e.id: idle for e in endpoints[1:]}))


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_loads_and_decides_for_every_kind_of_request(sample: str, registry: Registry) -> None:
    resolved = load_config(SAMPLES[sample], filename=sample, registry=registry, services=Services(Ledger()))
    failures = Failures()
    pipeline = build_pipeline(resolved, failures)
    decisions = []
    for request in requests():
        cycle = Cycle(request, now_s=0.1, rng=random.Random(1))
        assert pipeline.process_request(cycle) is None
        decision = pipeline.decide(cycle, candidates())
        if request.priority >= 0:
            assert isinstance(decision, Decision)
            pipeline.pre_request(cycle, decision)
            decisions.append(decision)
    assert failures.seen == []
    assert {d.primary for d in decisions} == {"default"}
    assert describe(resolved)


def test_same_seed_gives_the_same_decision(registry: Registry) -> None:
    def destinations() -> list[Any]:
        resolved = load_config(DEFAULT_CONFIG, filename="", registry=registry, services=Services(Ledger()))
        pipeline = build_pipeline(resolved)
        cycles = [Cycle(r, now_s=0.1, rng=random.Random(5)) for r in requests() * 3]
        return [getattr(pipeline.decide(c, candidates()), "destination", None) for c in cycles]

    assert destinations() == destinations()


def test_every_plugin_type_is_one_that_llm_d_knows_or_known_to_be_ours(registry: Registry) -> None:
    assert set(registry) - KNOWN_TYPES == {"latency-cost-scorer"}


def test_every_plugin_refuses_a_parameter_or_says_that_it_ignores_it(registry: Registry) -> None:
    for type_name in registry:
        text = (
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
            f"plugins: [{{type: {type_name}, parameters: {{noSuchParameter: 1}}}}]\n"
            "schedulingProfiles: [{name: default}]"
        )
        try:
            remarks = load_config(text, filename="f", registry=registry, services=Services(Ledger())).notices
        except ConfigError as error:
            remarks = error.problems
        assert "plugins[0].parameters.noSuchParameter" in [remark.path for remark in remarks], type_name


def test_the_latency_chain_brings_the_producers_it_reads_from(registry: Registry) -> None:
    text = SAMPLES["chart default with the latency predictor"]
    resolved = load_config(text, filename="f", registry=registry, services=Services(Ledger()))
    assert {"token-producer", "approx-prefix-cache-producer", "inflight-load-producer"} <= resolved.injected
    profile = resolved.profiles[0]
    assert [f.name for f in profile.filters] == [
        "strict-affinity-filter",
        "slo-headroom-tier-filter",
        "loose-affinity-filter",
    ]
    assert [(scorer.name, weight) for scorer, weight in profile.scorers] == [("latency-scorer", 1.0)]
    assert profile.picker.name == "weighted-random-picker"


@pytest.mark.parametrize("parameter", ["samplingMean: 1", "contextTTL: 5m", "useEncoderCacheFeatures: true"])
def test_what_the_latency_producer_ignores_is_said(parameter: str, registry: Registry) -> None:
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        f"plugins: [{{type: predicted-latency-producer, parameters: {{{parameter}}}}}]"
    )
    notices = load_config(text, filename="f", registry=registry, services=Services(Ledger())).notices
    assert any(n.path.endswith(parameter.partition(":")[0]) and "Ignored" in n.message for n in notices)
