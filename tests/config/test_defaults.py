"""What a configuration need not say."""

import pytest
from config_fakes import HEAD, load

from epp.config.build import build_pipeline
from epp.config.defaults import DEFAULT_CONFIG
from epp.config.describe import describe
from epp.config.resolve import ResolvedConfig
from epp.scheduling.data import PREFIX_MATCH


def weights(resolved: ResolvedConfig, profile: int = 0) -> dict[str, float]:
    return {scorer.name: weight for scorer, weight in resolved.profiles[profile].scorers}


def names(plugins: object) -> list[str]:
    return [p.name for p in plugins]  # type: ignore[attr-defined]


def notices(resolved: ResolvedConfig) -> list[str]:
    return [str(n).removeprefix("f.yaml:") for n in resolved.notices]


def test_built_in_default_is_queue_2_kv_2_prefix_3() -> None:
    resolved = load(DEFAULT_CONFIG)
    assert weights(resolved) == {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}
    assert resolved.injected == {
        "single-profile-handler",
        "max-score-picker",
        "utilization-detector",
        "approx-prefix-cache-producer",
        "token-producer",
        "openai-parser",
        "anthropic-parser",
        "vllmhttp-parser",
        "passthrough-parser",
    }
    assert names(resolved.parsers) == ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"]
    assert [(s.source.name, names(s.extractors)) for s in resolved.sources] == [
        ("metrics-data-source", ["core-metrics-extractor"])
    ]
    assert resolved.discovery is None
    assert resolved.notices == ()


def test_nothing_but_the_envelope_is_a_configuration() -> None:
    resolved = load(HEAD)
    assert resolved.default_profile
    assert resolved.profiles[0].name == "default"
    assert resolved.profiles[0].picker.name == "max-score-picker"
    assert names(s.source for s in resolved.sources) == ["metrics-data-source"]


def test_default_profile_has_all_that_is_declared_in_the_order_of_the_file() -> None:
    resolved = load(
        "plugins: [{type: decode-filter}, {type: queue-scorer}, {type: random-picker}, "
        "{type: label-selector-filter, name: a, parameters: {label: x}}, {type: kv-cache-utilization-scorer}]"
    )
    (profile,) = resolved.profiles
    assert names(profile.filters) == ["decode-filter", "a"]
    assert weights(resolved) == {"queue-scorer": 1.0, "kv-cache-utilization-scorer": 1.0}
    assert profile.picker.name == "random-picker"


def test_profile_without_a_picker_takes_the_one_that_is_declared() -> None:
    resolved = load("plugins: [{type: random-picker}]\nschedulingProfiles: [{name: default}]")
    assert resolved.profiles[0].picker.name == "random-picker"
    assert "max-score-picker" not in names(resolved.plugins)


def test_of_several_pickers_the_first_is_taken_and_said() -> None:
    resolved = load(
        "plugins: [{type: random-picker}, {type: max-score-picker}]\nschedulingProfiles: [{name: default, plugins: []}]"
    )
    assert resolved.profiles[0].picker.name == "random-picker"
    assert notices(resolved) == [
        "4: schedulingProfiles[0]: no picker is listed; of random-picker, max-score-picker the first is taken; "
        "list the one you want"
    ]


@pytest.mark.parametrize(
    ("text", "weight"), [("", 1.0), ("weight: 0", 0.0), ("weight: -2.5", -2.5), ("weight: 3", 3.0)]
)
def test_weight_absent_is_1_and_zero_is_zero(text: str, weight: float) -> None:
    resolved = load(
        "plugins: [{type: queue-scorer}]\n"
        f"schedulingProfiles: [{{name: default, plugins: [{{pluginRef: queue-scorer, {text}}}]}}]"
    )
    assert weights(resolved) == {"queue-scorer": weight}


def test_order_of_filters_matters_place_of_the_picker_does_not() -> None:
    resolved = load(
        """
plugins:
- {type: max-score-picker}
- {type: decode-filter}
- {type: label-selector-filter, parameters: {label: x}}
- {type: queue-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: max-score-picker}
  - {pluginRef: label-selector-filter}
  - {pluginRef: queue-scorer}
  - {pluginRef: decode-filter}
"""
    )
    assert names(resolved.profiles[0].filters) == ["label-selector-filter", "decode-filter"]
    assert resolved.profiles[0].picker.name == "max-score-picker"


def test_filter_that_is_also_a_scorer_is_both() -> None:
    resolved = load(
        "plugins: [{type: context-length-aware}]\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: context-length-aware, weight: 4}]}]"
    )
    assert names(resolved.profiles[0].filters) == ["context-length-aware"]
    assert weights(resolved) == {"context-length-aware": 4.0}


def test_a_plugin_without_a_place_in_profiles_and_a_weight_without_a_scorer_are_tolerated() -> None:
    resolved = load(
        """
plugins: [{type: token-producer}, {type: openai-parser}, {type: decode-filter}]
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: token-producer
  - pluginRef: openai-parser
  - pluginRef: decode-filter
    weight: 7
"""
    )
    assert notices(resolved) == [
        "8: schedulingProfiles[0].plugins[0]: 'token-producer' is neither filter, scorer nor picker: "
        "in a profile it does nothing",
        "9: schedulingProfiles[0].plugins[1]: 'openai-parser' is neither filter, scorer nor picker: "
        "in a profile it does nothing",
        "11: schedulingProfiles[0].plugins[2].weight: 'decode-filter' is no scorer: its weight is ignored",
    ]


# --- producers ----------------------------------------------------------------------------------------------------


def test_a_producer_under_another_name_does_not_satisfy_the_default_key() -> None:
    resolved = load(
        """
plugins:
- {type: approx-prefix-cache-producer, name: cpu-prefix-cache-producer, parameters: {autoTune: false}}
- {type: prefix-cache-scorer, name: gpu}
- {type: prefix-cache-scorer, name: cpu, parameters: {prefixMatchInfoProducerName: cpu-prefix-cache-producer}}
"""
    )
    assert resolved.injected >= {"approx-prefix-cache-producer", "token-producer"}
    gpu, cpu = (scorer for scorer, _ in resolved.profiles[0].scorers)
    assert gpu.consumes == (PREFIX_MATCH.by("approx-prefix-cache-producer"),)
    assert cpu.consumes == (PREFIX_MATCH.by("cpu-prefix-cache-producer"),)


def test_a_declared_default_producer_keeps_its_parameters() -> None:
    resolved = load(
        "plugins: [{type: prefix-cache-scorer}, "
        "{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 16}}]"
    )
    (producer,) = (p for p in resolved.plugins if p.name == "approx-prefix-cache-producer")
    assert producer.parameters.block_size_tokens == 16  # type: ignore[attr-defined]
    assert resolved.injected >= {"token-producer"}


def test_a_plugin_that_is_used_nowhere_is_still_there() -> None:
    resolved = load(
        "plugins: [{type: approx-prefix-cache-producer}, {type: queue-scorer}]\nschedulingProfiles: [{name: default}]"
    )
    assert names(resolved.plugins)[:2] == ["approx-prefix-cache-producer", "queue-scorer"]
    assert "other plugins: queue-scorer" in describe(resolved)


# --- parsers, detector, data layer --------------------------------------------------------------------------------


def test_a_parser_need_not_be_declared() -> None:
    resolved = load("requestHandler: {parsers: [{pluginRef: passthrough-parser}]}")
    assert names(resolved.parsers) == ["passthrough-parser"]
    assert "openai-parser" not in names(resolved.plugins)


def test_a_second_parser_of_one_type_is_ignored() -> None:
    resolved = load(
        "plugins: [{type: openai-parser, name: mine}]\n"
        "requestHandler: {parsers: [{pluginRef: mine}, {pluginRef: openai-parser}]}"
    )
    assert names(resolved.parsers) == ["mine"]
    assert notices(resolved) == ["4: requestHandler.parsers[1]: a second 'openai-parser' is ignored"]


def test_deprecated_places_are_read_and_the_new_ones_win() -> None:
    resolved = load(
        "parser: {pluginRef: openai-parser}\nsaturationDetector: {pluginRef: d}\n"
        "plugins: [{type: concurrency-detector, name: d}]"
    )
    assert names(resolved.parsers) == ["openai-parser"]
    assert resolved.saturation_detector.name == "d"
    assert notices(resolved) == [
        "3: parser: 'parser' is deprecated; write requestHandler.parsers",
        "4: saturationDetector: 'saturationDetector' is deprecated; write flowControl.saturationDetector",
    ]
    resolved = load(
        "parser: {pluginRef: openai-parser}\nrequestHandler: {parsers: [{pluginRef: anthropic-parser}]}\n"
        "saturationDetector: {pluginRef: nowhere}\nflowControl: {saturationDetector: {pluginRef: d}}\n"
        "plugins: [{type: concurrency-detector, name: d}]"
    )
    assert names(resolved.parsers) == ["anthropic-parser"]
    assert resolved.saturation_detector.name == "d"
    assert all("it is ignored" in n for n in notices(resolved))


def test_flow_control_settings_are_ignored_but_not_its_saturation_detector() -> None:
    resolved = load(
        """
plugins: [{type: concurrency-detector}]
schedulingProfiles: [{name: default}]
flowControl:
  maxBytes: 10Gi
  defaultRequestTTL: 60s
  priorityBands: [{priority: 100, maxRequests: 1k}]
  saturationDetector: {pluginRef: concurrency-detector}
"""
    )
    assert resolved.saturation_detector.name == "concurrency-detector"
    assert notices(resolved) == [
        "6: flowControl: flow control is off: its settings other than saturationDetector are ignored"
    ]


METRICS_SOURCE = "plugins:\n- {type: core-metrics-extractor}\n- {type: metrics-data-source, parameters: {path: /s}"


@pytest.mark.parametrize(
    "rest",
    [
        "}",
        ", name: m}",
        ", name: m}\ndataLayer: {sources: [{pluginRef: m, extractors: [{pluginRef: core-metrics-extractor}]}]}",
    ],
    ids=["declared", "renamed", "renamed and wired"],
)
def test_a_declared_metrics_source_keeps_its_parameters_and_is_not_scraped_twice(rest: str) -> None:
    resolved = load(METRICS_SOURCE + rest)
    assert [s.source.parameters.path for s in resolved.sources] == ["/s"]
    assert "metrics-data-source" not in resolved.injected


def test_a_source_without_extractors_is_mentioned() -> None:
    resolved = load("plugins: [{type: metrics-data-source}]\ndataLayer: {sources: [{pluginRef: metrics-data-source}]}")
    assert [n.split(": ")[2] for n in notices(resolved)] == ["a source without extractors"]


def test_a_plugin_that_needs_no_source_may_be_listed_as_an_extractor_and_may_be_all_there_is() -> None:
    declared = "plugins: [{type: inflight-load-producer}, {type: metrics-data-source}]\n"
    source = "{pluginRef: metrics-data-source, extractors: [{pluginRef: inflight-load-producer}]}"
    resolved = load(f"{declared}dataLayer: {{sources: [{source}]}}")
    assert notices(resolved) == [
        "4: dataLayer.sources[0].extractors[0]: 'inflight-load-producer' needs no data source: the entry is ignored"
    ]
    assert load(f"{declared}dataLayer: {{injectDefaults: false}}").sources == ()


def test_discovery_is_wired_and_an_unused_one_is_mentioned() -> None:
    declared = "plugins: [{type: file-discovery}]\n"
    assert load(declared + "dataLayer: {discovery: {pluginRef: file-discovery}}").discovery is not None
    resolved = load(declared)
    assert resolved.discovery is None
    assert len(resolved.notices) == 1


# --- the envelope -------------------------------------------------------------------------------------------------


def test_both_api_versions_mean_the_same() -> None:
    resolved = load(HEAD.replace("llm-d.ai", "inference.networking.x-k8s.io"))
    assert notices(resolved) == [
        "1: apiVersion: 'inference.networking.x-k8s.io/v1alpha1' is deprecated; write 'llm-d.ai/v1alpha1'"
    ]


def test_json_is_read_too() -> None:
    resolved = load('{\n\t"apiVersion": "llm-d.ai/v1alpha1",\n\t"kind": "EndpointPickerConfig"\n}')
    assert resolved.profiles[0].name == "default"


def test_null_is_the_same_as_absent() -> None:
    resolved = load(
        "featureGates:\nplugins:\n- {type: approx-prefix-cache-producer, name: , parameters: {blockSizeTokens: ~}}\n"
        "- {type: queue-scorer, parameters: }\nschedulingProfiles:\ndataLayer: {sources: ~}\nparser:\n"
    )
    assert names(resolved.plugins)[:2] == ["approx-prefix-cache-producer", "queue-scorer"]


@pytest.mark.parametrize(
    "gate", ["haPopulateNonLeaderDatastore", "flowControl=false", "haPopulateNonLeaderDatastore= F "]
)
def test_known_gates_are_accepted(gate: str) -> None:
    resolved = load(f'featureGates: ["{gate}"]')
    assert resolved.feature_gates["flowControl"] is False
    assert resolved.feature_gates["haPopulateNonLeaderDatastore"] is (gate[-2] != "F")


def test_experimental_deprecated_and_ignored_things_are_mentioned() -> None:
    text = """
plugins:
- type: session-affinity-scorer
- type: by-label
  parameters: {label: x}
- type: approx-prefix-cache-producer
  parameters: {blockSize: 16}
- type: queue-scorer
  parameters: {wait: 1}
"""
    assert notices(load(text)) == [
        "5: plugins[0].type: plugin type 'session-affinity-scorer' is experimental and may change",
        "6: plugins[1].type: plugin type 'by-label' is a deprecated spelling; write 'label-selector-filter'",
        "9: plugins[2].parameters.blockSize: Deprecated spelling of blockSizeTokens.",
        "11: plugins[3].parameters.wait: 'queue-scorer' has no such parameter; it is ignored",
    ]
    assert len(load(text, allow_experimental=True).notices) == 3


# --- description --------------------------------------------------------------------------------------------------


def test_description_shows_what_runs_and_what_was_added() -> None:
    text = describe(load(DEFAULT_CONFIG))
    assert (
        text
        == """\
configuration: f.yaml
feature gates: flowControl=false, haPopulateNonLeaderDatastore=true
profile handler: single-profile-handler [default]
profile default
  filters, in order: none
  scorers, with weights
    queue-scorer                 2
    kv-cache-utilization-scorer  2
    prefix-cache-scorer          3
  picker: max-score-picker [default]
producers, in the order they run
  token-producer [default] → approx-prefix-cache-producer
  approx-prefix-cache-producer [default] → prefix-cache-scorer
parsers, in order
  openai-parser [default]
  anthropic-parser [default]
  vllmhttp-parser [default]
  passthrough-parser [default]
saturation detector: utilization-detector [default]
data sources
  metrics-data-source → core-metrics-extractor
discovery: from the command line"""
    )


def test_description_names_renamed_plugins_and_ends_with_the_notices() -> None:
    text = describe(load("plugins: [{type: queue-scorer, name: q}]\nparser: {pluginRef: openai-parser}"))
    assert "profile default [default]\n" in text
    assert "q (queue-scorer)" in text
    assert text.endswith("notices\n  f.yaml:4: parser: 'parser' is deprecated; write requestHandler.parsers")


def test_a_resolved_configuration_makes_a_pipeline() -> None:
    assert not build_pipeline(load(DEFAULT_CONFIG)).observes_chunks
