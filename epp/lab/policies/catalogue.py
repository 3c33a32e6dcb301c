"""The policies by name. The oracle is not among them: it sees what no policy may, and stands apart."""

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from epp.config.builtins import BUILT_INS
from epp.lab.policies.cache import CacheAware, LeastLoad, LMetric
from epp.lab.policies.load import AlwaysBusiest, ModelDock, PowerOfTwo, RoundRobin
from epp.lab.policies.policy import Policy, picked_by
from epp.plugins.random_picker import RandomPicker


def _from_file(name: str, about: str, knows_hardware: bool = False) -> Policy:
    text = files(__package__).joinpath(f"{name.replace('-', '_')}.yaml").read_text()
    return Policy(name, about, text, knows_hardware=knows_hardware)


WORST = "always-busiest"

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy("ours", "the built-in configuration headroom", BUILT_INS["headroom"].text, knows_hardware=True),
            Policy(
                "predicted-latency",
                "the built-in configuration of that name: llm-d's profile, as we count and compare",
                BUILT_INS["predicted-latency"].text,
                knows_hardware=True,
            ),
            _from_file("llm-d-predicted", "llm-d's predicted latency as its chart sets it", knows_hardware=True),
            _from_file("llm-d-predicted-streaming", "the same, told that answers stream", knows_hardware=True),
            Policy(
                "llm-d-default", "llm-d's default: queue 2, KV 2, prefix 3, max-score", BUILT_INS["llm-d-default"].text
            ),
            picked_by(LMetric, "lmetric", "uncached prefill tokens times batch size"),
            picked_by(CacheAware, "cache-aware", "SGLang's: longest match while load is balanced"),
            _from_file("sticky", "llm-d's: stays with warm servers until they are saturated"),
            picked_by(LeastLoad, "least-load", "SMG's: seconds of work, and a price on KV use"),
            picked_by(ModelDock, "modeldock", "in flight + 2 · waiting + running + 10 · KV use"),
            _from_file("least-requests", "fewest requests in flight"),
            picked_by(PowerOfTwo, "power-of-two", "of two by chance the one with fewer requests in flight"),
            picked_by(RoundRobin, "round-robin", "each in turn"),
            Policy("random", "by chance", picked_by(RandomPicker, "random", "").config_text),
            picked_by(AlwaysBusiest, "always-busiest", "deliberately bad: most requests in flight"),
        )
    }
)
