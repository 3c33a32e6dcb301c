"""More free KV cache is better."""

from epp.plugins._signals import fresh, known_or_mean, neutral, while_fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Scorer


class KvCacheUtilizationScorer(Scorer):
    """score = 1 − KV cache usage (0..1). A cache that is 30 % full scores 0.7. Takes no parameters."""

    plugin_type = "kv-cache-utilization-scorer"

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        return while_fresh(candidates, cycle.now_s, self, _scores)


def _scores(candidates: Candidates, now_s: float) -> FloatArray:
    usage_ratio = known_or_mean(fresh(candidates.snapshot.kv_cache_usage_ratio, candidates, now_s))
    return neutral(candidates) if usage_ratio is None else 1.0 - usage_ratio
