"""A small ecosystem of plugins that do nothing but have the names, roles and dependencies of real ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.config.resolve import ResolvedConfig, load_config
from epp.ledger import Ledger
from epp.scheduling import plugin as roles
from epp.scheduling.data import PREFIX_MATCH, TOKENIZED_PROMPT, DataKey
from epp.scheduling.plugin import Parameters, Plugin, Services, Stability
from epp.scheduling.registry import Registry


class PrefixParameters(Parameters):
    prefix_match_info_producer_name: str = ""


class Inner(Parameters):
    threshold: float = 0.5


class ProducerParameters(Parameters):
    block_size_tokens: int = Field(64, gt=0)
    block_size: int | None = Field(None, description="Deprecated spelling of blockSizeTokens.")
    auto_tune: bool = True
    names: tuple[str, ...] = ()
    inner: Inner = Inner()
    either: int | str | None = None


class LabelParameters(Parameters):
    label: str


class _Scorer(roles.Scorer):
    def score(self, cycle: Any, candidates: Any) -> Any:
        return np.ones(len(candidates))


class Queue(_Scorer):
    plugin_type = "queue-scorer"


class Kv(_Scorer):
    plugin_type = "kv-cache-utilization-scorer"


class Session(_Scorer):
    plugin_type = "session-affinity-scorer"
    stability = Stability.ALPHA


class Prefix(_Scorer):
    plugin_type = "prefix-cache-scorer"
    parameters_model = PrefixParameters

    def __init__(self, name: str, parameters: PrefixParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self.key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self.key,)


class _Filter(roles.Filter):
    def filter(self, cycle: Any, candidates: Any) -> Any:
        return candidates


class Decode(_Filter):
    plugin_type = "decode-filter"


class ByLabel(_Filter):
    plugin_type = "label-selector-filter"
    aliases = ("by-label",)
    parameters_model = LabelParameters


class ContextLength(_Scorer, _Filter):
    plugin_type = "context-length-aware"


class _Picker(roles.Picker):
    def pick(self, cycle: Any, candidates: Any, totals: Any) -> Any:
        return [int(candidates.rows[0])]


class MaxScore(_Picker):
    plugin_type = "max-score-picker"


class RandomPicker(_Picker):
    plugin_type = "random-picker"


class _Handler(roles.ProfileHandler):
    def pick_profiles(self, cycle: Any, profiles: Any, results: Any) -> Any:
        return () if results else profiles

    def process_results(self, cycle: Any, results: Any) -> Any:
        return next(iter(results))


class SingleProfile(_Handler):
    plugin_type = "single-profile-handler"


class DataParallel(_Handler):
    plugin_type = "data-parallel-profile-handler"


class _Producer(roles.Producer):
    def produce(self, cycle: Any, candidates: Any) -> None:
        pass


class Tokens(_Producer):
    plugin_type = "token-producer"

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return (TOKENIZED_PROMPT.by(self.name),)


class InFlight(Tokens):
    plugin_type = "inflight-load-producer"


class Approx(_Producer):
    plugin_type = "approx-prefix-cache-producer"
    parameters_model = ProducerParameters

    def __init__(self, name: str, parameters: ProducerParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self.parameters = parameters
        if parameters.block_size_tokens == 13:
            raise ValueError("13 brings bad luck")

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return (PREFIX_MATCH.by(self.name),)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (TOKENIZED_PROMPT.by(None),)


class Utilization(_Filter, roles.SaturationDetector):
    plugin_type = "utilization-detector"

    def saturation(self, candidates: Any, now_s: float) -> float:
        return 0.0


class Concurrency(Utilization):
    plugin_type = "concurrency-detector"


class MetricsParameters(Parameters):
    path: str = "/metrics"


class Metrics(roles.DataSource):
    plugin_type = "metrics-data-source"
    parameters_model = MetricsParameters


class CoreMetrics(roles.Extractor):
    plugin_type = "core-metrics-extractor"


class FileDiscovery(roles.Discovery):
    plugin_type = "file-discovery"


PARSERS = [
    type(name.title(), (roles.Parser,), {"plugin_type": name})
    for name in ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
]
PLUGINS: list[type[Plugin]] = [
    *(Queue, Kv, Session, Prefix, Decode, ByLabel, ContextLength, MaxScore, RandomPicker, SingleProfile),
    *(DataParallel, Tokens, InFlight, Approx, Utilization, Concurrency, Metrics, CoreMetrics, FileDiscovery, *PARSERS),
]
REGISTRY = Registry(PLUGINS)
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def load(text: str, registry: Registry = REGISTRY, **options: Any) -> ResolvedConfig:
    """`text` after the two lines of the envelope, unless it has its own."""
    whole = text if "apiVersion" in text else HEAD + text
    return load_config(whole, filename="f.yaml", registry=registry, services=Services(Ledger()), **options)
