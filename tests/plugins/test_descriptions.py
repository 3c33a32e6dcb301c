"""Plugins that only describe: their types exist, their parameters have llm-d's defaults, and mistakes are refused."""

import pytest
from plugin_fakes import REGISTRY, a_cycle, decide, make, pool
from pydantic import ValidationError

from epp.scheduling.plugin import DataSource, Discovery, Extractor, Parser

PARSERS = ["openai-parser", "anthropic-parser", "vllmhttp-parser", "sglanghttp-parser", "passthrough-parser"]


@pytest.mark.parametrize("plugin_type", PARSERS)
def test_parsers_tolerate_any_parameters(plugin_type):
    assert isinstance(make(plugin_type, {"x": 1}), Parser)


def test_metrics_data_source():
    plugin = make("metrics-data-source")
    assert isinstance(plugin, DataSource)
    defaults = plugin.parameters
    assert (defaults.scheme, defaults.path, defaults.port, defaults.interval_s) == ("http", "/metrics", None, None)
    assert defaults.insecure_skip_verify is True
    given = {"scheme": "https", "port": 9100, "interval": "1s500ms", "insecureSkipVerify": False, "caCertPath": "/ca"}
    assert make("metrics-data-source", given).parameters.interval_s == 1.5


@pytest.mark.parametrize(
    "bad", [{"scheme": "ftp"}, {"port": 0}, {"port": "80"}, {"interval": "soon"}, {"interval": "0s"}, {"path": "x"}]
)
def test_metrics_data_source_refuses(bad):
    with pytest.raises(ValidationError):
        make("metrics-data-source", bad)


def test_core_metrics_extractor():
    plugin = make("core-metrics-extractor")
    assert isinstance(plugin, Extractor)
    assert plugin.parameters.engine_label_key == "llm-d.ai/engine-type"
    assert plugin.parameters.default_engine == "vllm"
    mine = {
        "name": "mine",
        "queuedRequestsSpec": "my_queue{kind=waiting}",
        "cacheInfoSpec": "my_cache",
        "customMetrics": [{"attributeKey": "heat", "metricSpec": "my_heat"}],
    }
    (engine,) = make("core-metrics-extractor", {"engineConfigs": [mine]}).parameters.engine_configs
    assert engine.queued_requests_spec == "my_queue{kind=waiting}"
    assert engine.running_requests_spec == ""
    assert (engine.cache_block_size_label_name, engine.cache_num_blocks_label_name) == ("block_size", "num_gpu_blocks")
    assert engine.custom_metrics[0].attribute_key == "heat"


@pytest.mark.parametrize(
    "bad",
    [
        {"engineConfigs": [{"name": "default"}]},
        {"engineConfigs": [{"name": "a"}, {"name": "a"}]},
        {"engineConfigs": [{"queuedRequestsSpec": "x"}]},
        {"engineConfigs": [{"name": "a", "queueSpec": "x"}]},
        {"engineConfigs": [{"name": "a", "queuedRequestsSpec": "no metric"}]},
        {"defaultEngine": "unheard-of"},
    ],
)
def test_core_metrics_extractor_refuses(bad):
    with pytest.raises(ValueError):  # noqa: PT011  # of the parameters, or of the engines made from them
        make("core-metrics-extractor", bad)


def test_file_discovery():
    plugin = make("file-discovery", {"path": "endpoints.yaml", "watchFile": True})
    assert isinstance(plugin, Discovery)
    assert (plugin.parameters.path, plugin.parameters.watch_file) == ("endpoints.yaml", True)
    with pytest.raises(ValidationError):
        make("file-discovery")


def test_endpoint_notification_source_is_accepted():
    assert isinstance(make("endpoint-notification-source"), DataSource)


def test_destination_endpoint_served_verifier_says_who_answered():
    plugin, candidates = make("destination-endpoint-served-verifier"), pool(size=2)
    cycle = a_cycle()
    plugin.response_headers(cycle, decide(candidates, 0), 200, {}, "10.0.0.2:8000")
    assert cycle.response_headers == {"x-conformance-test-served-endpoint": "10.0.0.2:8000"}
    silent = a_cycle()
    plugin.response_headers(silent, decide(candidates, 0), 200, {}, None)
    assert silent.response_headers == {}


@pytest.mark.parametrize("plugin_type", sorted(set(REGISTRY)))
def test_every_plugin_describes_itself_and_its_parameters(plugin_type):
    plugin_class = REGISTRY.get(plugin_type)
    assert plugin_class.__doc__
    for name, info in plugin_class.parameters_model.model_fields.items():
        alias = info.alias or name
        assert "_" not in alias
