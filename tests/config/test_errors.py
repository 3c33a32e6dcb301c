"""Every bad configuration is told by key, line and fix."""

import json
import random

import pytest
from config_fakes import HEAD, PLUGINS, REGISTRY, Tokens, load
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config.defaults import DEFAULT_CONFIG
from epp.config.errors import ConfigError, format_path
from epp.config.resolve import ResolvedConfig
from epp.scheduling.data import PREFIX_MATCH
from epp.scheduling.registry import Registry

PROFILE = "schedulingProfiles:\n- name: default\n  plugins:\n"  # with the envelope: lines 3 to 5


def problems(text: str, registry: Registry = REGISTRY) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, registry)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [line.removeprefix("f.yaml:") for line in str(caught.value).split("\n")]


BEYOND_ALL = "0x" + "f" * 290  # which no double can hold, though the reader takes it for a number

CASES = {
    "no envelope": (
        "apiVersion:\n",
        [
            "1: required key 'apiVersion' is missing; add `apiVersion: llm-d.ai/v1alpha1`",
            "1: required key 'kind' is missing; add `kind: EndpointPickerConfig`",
        ],
    ),
    "foreign kind": (
        "apiVersion: apps/v1\nkind: Deployment\nspec: {}",
        [
            '1: apiVersion: unknown apiVersion "apps/v1"; write `apiVersion: llm-d.ai/v1alpha1`',
            '2: kind: unknown kind "Deployment"; write `kind: EndpointPickerConfig`',
        ],
    ),
    "not an object": (
        "- apiVersion: llm-d.ai/v1alpha1",
        [
            "1: a configuration must be an object, not a list; "
            "it starts with apiVersion: llm-d.ai/v1alpha1 and kind: EndpointPickerConfig"
        ],
    ),
    "unknown top-level key": ("pluginz: []", ["3: pluginz: unknown key; did you mean 'plugins'?"]),
    "unknown inner key": (
        "plugins:\n- type: queue-scorer\n  params: {}",
        ["5: plugins[0].params: unknown key; did you mean 'parameters'?"],
    ),
    "unlike anything": (
        PROFILE + "  - {pluginRef: queue-scorer, q: 1}",
        ["6: schedulingProfiles[0].plugins[0].q: unknown key; known keys are pluginRef, weight"],
    ),
    "several faults of shape at once": (
        "plugins: {}\nfeatureGates: [1]\ndataLayer: {injectDefaults: 'true'}",
        [
            "3: plugins: must be a valid array, not an object",
            "4: featureGates[0]: must be a valid string, not 1; put it in quotes",
            '5: dataLayer.injectDefaults: must be a valid boolean, not "true"; write it without quotes',
        ],
    ),
    "weight in quotes": (
        PROFILE + '  - {pluginRef: queue-scorer, weight: "2"}',
        [
            '6: schedulingProfiles[0].plugins[0].weight: must be a valid number, not "2"; write it without quotes',
        ],
    ),
    "weight that is a boolean": (
        PROFILE + "  - {pluginRef: queue-scorer, weight: yes}",
        ["6: schedulingProfiles[0].plugins[0].weight: must be a valid number, not true"],
    ),
    "bad duration": (
        "flowControl:\n  defaultRequestTTL: 60",
        ["4: flowControl.defaultRequestTTL: must be a duration such as 200ms, 5s or 1m30s, not 60"],
    ),
    "bad quantity": (
        "flowControl:\n  priorityBands:\n  - priority: 1\n    maxBytes: 10GB",
        ['6: flowControl.priorityBands[0].maxBytes: must be a quantity such as 500, 1k or 10Gi, not "10GB"'],
    ),
    "setting that the schema lost": (
        "flowControl: {saturationDetector: {metricsStalenessThreshold: 1s}}",
        [
            "3: flowControl.saturationDetector.metricsStalenessThreshold: unknown key; known keys are pluginRef",
        ],
    ),
    "unknown gates": (
        "featureGates: [dataLayer, flowcontrol]",
        [
            "3: featureGates[0]: feature gate 'dataLayer' is unknown or unregistered; "
            "known gates are flowControl, haPopulateNonLeaderDatastore",
            "3: featureGates[1]: feature gate 'flowcontrol' is unknown or unregistered; did you mean 'flowControl'?",
        ],
    ),
    "gate of a later version": (
        "featureGates:\n- flowControl",
        ["4: featureGates[0]: feature gate 'flowControl' is not available in this version yet; remove it"],
    ),
    "gate with a bad value": (
        "featureGates: [flowControl=on]",
        [
            "3: featureGates[0]: feature gate 'flowControl' cannot be \"on\"; "
            "write flowControl=true or flowControl=false"
        ],
    ),
    "plugin without a type": ("plugins: [{name: x}]", ["3: plugins[0]: plugin 'x' is missing a type; add `type:`"]),
    "plugin twice": (
        "plugins:\n- type: queue-scorer\n- type: queue-scorer",
        [
            "5: plugins[1]: duplicate plugin name 'queue-scorer', first on line 4; give one of them another `name:`",
        ],
    ),
    "misspelt type": (
        "plugins:\n- type: queue-scorrer",
        ["4: plugins[0].type: plugin type 'queue-scorrer' is not registered; did you mean 'queue-scorer'?"],
    ),
    "unheard-of type": ("plugins: [{type: 7z}]", ["3: plugins[0].type: plugin type '7z' is not registered"]),
    "type of llm-d that is not here": (
        "plugins:\n- type: precise-prefix-cache-producer\n- type: fcfs-ordering-policy",
        [
            "4: plugins[0].type: plugin type 'precise-prefix-cache-producer' is known to llm-d but not available in "
            "this version; remove the plugin and its references",
            "5: plugins[1].type: plugin type 'fcfs-ordering-policy' is known to llm-d but not available in "
            "this version; remove the plugin and its references",
        ],
    ),
    "misspelt parameter": (
        "plugins:\n- type: approx-prefix-cache-producer\n  parameters:\n"
        "    blockSizeToken: 5\n    inner: {treshold: 1}",
        [
            "6: plugins[0].parameters.blockSizeToken: unknown key; did you mean 'blockSizeTokens'?",
            "7: plugins[0].parameters.inner.treshold: unknown key; did you mean 'threshold'?",
        ],
    ),
    "float where an int is wanted": (
        "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 16.0}}]",
        ["3: plugins[0].parameters.blockSizeTokens: must be a valid integer, not 16.0; write 16"],
    ),
    "text where an int is wanted": (
        "plugins:\n- type: approx-prefix-cache-producer\n  parameters: {blockSizeTokens: '16'}",
        ['5: plugins[0].parameters.blockSizeTokens: must be a valid integer, not "16"; write it without quotes'],
    ),
    "out of range": (
        "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 0}}]",
        ["3: plugins[0].parameters.blockSizeTokens: must be greater than 0, not 0"],
    ),
    "parameter beyond all numbers": (
        f"plugins: [{{type: approx-prefix-cache-producer, parameters: {{inner: {{threshold: {BEYOND_ALL}}}}}}}]",
        [f"3: plugins[0].parameters.inner.threshold: must be a finite number, not {str(int(BEYOND_ALL, 16))[:57]}..."],
    ),
    "weight beyond all numbers": (
        "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, "
        f"weight: {BEYOND_ALL}}}]}}]",
        [
            "4: schedulingProfiles[0].plugins[0].weight: must be a finite number, not "
            f"{str(int(BEYOND_ALL, 16))[:57]}..."
        ],
    ),
    "neither one nor the other": (
        "plugins: [{type: approx-prefix-cache-producer, parameters: {either: 1.5}}]",
        [
            "3: plugins[0].parameters.either: must be a valid integer or must be a valid string, not 1.5; "
            "put it in quotes"
        ],
    ),
    "parameter missing": (
        "plugins:\n- {type: queue-scorer}\n- {type: label-selector-filter}",
        ["5: plugins[1].parameters.label: required key is missing; add it"],
    ),
    "parameters that are no object": (
        "plugins: [{type: queue-scorer, parameters: [1]}]",
        ["3: plugins[0].parameters: must be an object, not a list"],
    ),
    "what only the plugin can tell": (
        "plugins:\n- type: approx-prefix-cache-producer\n  name: p\n  parameters: {blockSizeTokens: 13}",
        [
            "6: plugins[0].parameters: failed to create plugin 'p' (type: approx-prefix-cache-producer): "
            "13 brings bad luck"
        ],
    ),
    "profile without a name": (
        "schedulingProfiles:\n- plugins: []\n- name: ''",
        [
            "3: schedulingProfiles: no profile handler configured, and there are several profiles; "
            "declare a handler under `plugins`, or keep one profile",
            "4: schedulingProfiles[0]: is missing a name; add `name:`",
            "5: schedulingProfiles[1]: is missing a name; add `name:`",
        ],
    ),
    "profile twice": (
        "plugins: [{type: data-parallel-profile-handler}]\nschedulingProfiles:\n- name: a\n- name: a",
        ["6: schedulingProfiles[1].name: has duplicate name 'a'; give each profile its own name"],
    ),
    "profile entry without a reference": (
        PROFILE + "  - weight: 1",
        ["6: schedulingProfiles[0].plugins[0]: is missing a 'pluginRef'; add `pluginRef:` with the name of a plugin"],
    ),
    "profile entry that is not declared": (
        PROFILE + "  - pluginRef: queue-scorer\n  - pluginRef: nonsense",
        [
            "6: schedulingProfiles[0].plugins[0].pluginRef: references undefined plugin 'queue-scorer'; "
            "add `- type: queue-scorer` to `plugins`",
            "7: schedulingProfiles[0].plugins[1].pluginRef: references undefined plugin 'nonsense'; "
            "declare it under `plugins`",
        ],
    ),
    "reference by type to a named plugin": (
        PROFILE + "  - pluginRef: my-queue\nplugins: [{type: queue-scorer, name: my-queu}]",
        [
            "6: schedulingProfiles[0].plugins[0].pluginRef: references undefined plugin 'my-queue'; "
            "did you mean 'my-queu'?"
        ],
    ),
    "two pickers": (
        PROFILE
        + "  - pluginRef: max-score-picker\n  - pluginRef: random-picker\n"
        + "plugins: [{type: max-score-picker}, {type: random-picker}]",
        [
            "7: schedulingProfiles[0].plugins[1]: a profile has one picker; 'max-score-picker' is there already; "
            "remove one of them"
        ],
    ),
    "two handlers": (
        "plugins:\n- type: single-profile-handler\n- type: data-parallel-profile-handler",
        [
            "5: plugins[1]: multiple profile handlers found ('single-profile-handler', "
            "'data-parallel-profile-handler'); only one is allowed; remove the others"
        ],
    ),
    "single handler, several profiles": (
        "plugins:\n- type: single-profile-handler\nschedulingProfiles: [{name: a}, {name: b}]",
        [
            "4: plugins[0]: single-profile-handler cannot support multiple scheduling profiles; "
            "keep one profile, or use another handler"
        ],
    ),
    "several profiles, no handler": (
        "schedulingProfiles: [{name: a}, {name: b}]",
        [
            "3: schedulingProfiles: no profile handler configured, and there are several profiles; "
            "declare a handler under `plugins`, or keep one profile"
        ],
    ),
    "parser that is none": (
        "plugins: [{type: queue-scorer}, {type: openai-parser}]\n"
        "requestHandler:\n  parsers:\n  - pluginRef: queue-scorer\n  - pluginRef: openapi-parser\n  - {}",
        [
            "6: requestHandler.parsers[0].pluginRef: the plugin 'queue-scorer' is not a parser plugin; "
            "there are: openai-parser",
            "7: requestHandler.parsers[1].pluginRef: references undefined plugin 'openapi-parser'; "
            "did you mean 'openai-parser'?",
            "8: requestHandler.parsers[2]: plugin reference is empty; name an instance of `plugins`",
        ],
    ),
    "saturation detector that is none": (
        "plugins: [{type: queue-scorer}]\nsaturationDetector: {pluginRef: queue-scorer}",
        [
            "4: saturationDetector.pluginRef: the plugin 'queue-scorer' is not a saturation detector; "
            "there is none in `plugins`"
        ],
    ),
    "saturation detector that is not named": (
        "flowControl:\n  saturationDetector: {}",
        ["4: flowControl.saturationDetector: plugin reference is empty; name an instance of `plugins`"],
    ),
    "sources and extractors that are none": (
        "plugins: [{type: queue-scorer}, {type: metrics-data-source}]\n"
        "dataLayer:\n  sources:\n  - pluginRef: queue-scorer\n    extractors:\n    - pluginRef: metrics-data-source",
        [
            "6: dataLayer.sources[0].pluginRef: the plugin 'queue-scorer' is not a data source; "
            "there are: metrics-data-source",
            "8: dataLayer.sources[0].extractors[0].pluginRef: the plugin 'metrics-data-source' is not an extractor; "
            "there are: core-metrics-extractor",
        ],
    ),
    "no sources at all": (
        "dataLayer: {injectDefaults: false}",
        [
            "3: dataLayer.injectDefaults: data layer enabled but no data sources configured; "
            "add `sources`, or remove `injectDefaults: false`"
        ],
    ),
    "discovery that is none": (
        "dataLayer: {discovery: {pluginRef: file-discovery}}",
        [
            "3: dataLayer.discovery.pluginRef: references undefined plugin 'file-discovery'; "
            "add `- type: file-discovery` to `plugins`"
        ],
    ),
    "replicas": (
        "dataLayer:\n  peerDiscovery: {pluginRef: x}\n  crossReplicaSyncerPluginRef: z\n  crossReplicaSyncInterval: 1s",
        [
            "4: dataLayer.peerDiscovery: 'peerDiscovery' is not available in this version yet; remove it",
            "5: dataLayer.crossReplicaSyncerPluginRef: 'crossReplicaSyncerPluginRef' is not available in this version "
            "yet; remove it",
        ],
    ),
    "scorer without its producer": (
        "plugins:\n- type: approx-prefix-cache-producer\n  name: gpu\n"
        "- type: prefix-cache-scorer\n  parameters: {prefixMatchInfoProducerName: gpus}",
        [
            "6: plugins[1]: plugin 'prefix-cache-scorer' reads PrefixCacheMatchInfo of the producer 'gpus', "
            "which is not configured; there are: gpu"
        ],
    ),
    "default producer's name taken by another": (
        "plugins: [{type: queue-scorer, name: approx-prefix-cache-producer}, {type: prefix-cache-scorer}]",
        [
            "3: plugins[1]: plugin 'prefix-cache-scorer' reads PrefixCacheMatchInfo of the producer "
            "'approx-prefix-cache-producer', which does not make it; declare one under `plugins`"
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_configuration_is_told_by_key_line_and_fix(case: str) -> None:
    text, expected = CASES[case]
    assert problems(text) == expected


def test_producers_that_wait_for_one_another_are_an_error() -> None:
    class Circular(Tokens):
        plugin_type = "token-producer"
        consumes = (PREFIX_MATCH.by(None),)

    registry = Registry([p for p in PLUGINS if p is not Tokens] + [Circular])
    assert problems("plugins:\n- type: queue-scorer\n- type: token-producer", registry) == [
        "5: plugins[1]: producers wait for one another: token-producer → approx-prefix-cache-producer → "
        "token-producer; let one of them read from another producer"
    ]


def test_a_default_that_is_not_available_is_said_at_the_top() -> None:
    registry = Registry([p for p in PLUGINS if p.plugin_type != "max-score-picker"])
    assert problems(HEAD, registry) == [
        "1: plugin type 'max-score-picker' is known to llm-d but not available in this version; "
        "it is a default: configure another"
    ]


def test_keys_that_are_no_plain_words_are_quoted_and_messages_stay_on_one_line() -> None:
    assert format_path(("a", 0, "b.c", "d\n")) == 'a[0]["b.c"]["d\\n"]'
    assert len(problems('"x\\ny\\u202e": 1\nplugins: [{type: "a\\nb", name: "c\\nd"}, {name: "e\\nf"}]')) == 1
    assert len(problems('plugins: [{type: "a\\nb", name: "c\\nd"}, {name: "e\\nf"}]')) == 2


SAMPLE = DEFAULT_CONFIG + (
    "featureGates: [haPopulateNonLeaderDatastore]\nrequestHandler: {parsers: [{pluginRef: openai-parser}]}\n"
    "flowControl: {maxBytes: 10Gi, defaultRequestTTL: 5s, saturationDetector: {pluginRef: utilization-detector}}\n"
)
SCRAPS = ["", " ", "\n", "- ", ": ", "null", "[", "]", "{", "}", "&a ", "*a", "<<: ", "!!int ", "0x", "1e400", "-.inf"]
SCRAPS += ['"', "'", "|\n", "\t", "\ud800", "\x00", "…", "yes", "[]", "{}", "type: ", "name: ", "parameters: "]
SCRAPS += ["9" * 5000]

# Any shape, whose words are likely to mean something.
values = st.recursive(
    st.sampled_from([None, True, 0, -1, 2.5, "", "queue-scorer", "openai-parser", "x", 10**30]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "pluginRef", "plugins", "parameters", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
KEYS = ["featureGates", "plugins", "schedulingProfiles", "dataLayer", "flowControl", "requestHandler", "parser"]


def is_resolved_or_explained(text: str) -> bool:
    try:
        return isinstance(load(text), ResolvedConfig)
    except ConfigError as error:
        return bool(error.problems) and all("\n" not in str(problem) for problem in error.problems)


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32), edits=st.integers(1, 6))
def test_any_text_is_either_a_configuration_or_a_config_error(seed: int, edits: int) -> None:
    rng, text = random.Random(seed), SAMPLE
    for _ in range(edits):
        start = rng.randrange(len(text))
        text = text[:start] + rng.choice(SCRAPS) + text[start + rng.choice((0, 0, 1, 3, 20)) :]
    assert is_resolved_or_explained(text)


@settings(max_examples=250, deadline=None)
@given(config=st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_any_shape_is_either_a_configuration_or_a_config_error(config: dict[str, object]) -> None:
    envelope = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    assert is_resolved_or_explained(json.dumps({**envelope, **config}))
