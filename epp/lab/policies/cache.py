"""Policies that look at the cached prefix and at load."""

import numpy as np

from epp.lab.policies.view import View, ViewPicker, lowest
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import BoolArray

LEAST_MATCH_RATIO = 0.3
BALANCE_REQUESTS = 64
BALANCE_RATIO = 1.5
"""SGLang's router: defaults of its cache-aware policy."""

THROUGHPUT_TOKENS_PER_S = 10_000.0
KV_PRESSURE_S = 0.15
"""SMG's least_load: what a server does per second, and the price of a half-full KV cache."""


class CacheAware(ViewPicker):
    """SGLang's cache_aware: the longest match, unless it is short or load is out of balance; else the least loaded."""

    plugin_type = "lab-cache-aware"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        most, least = view.requests.max(), view.requests.min()
        unbalanced = most - least > BALANCE_REQUESTS and most > BALANCE_RATIO * least
        if unbalanced or view.match_ratio.max() <= LEAST_MATCH_RATIO:
            return lowest(view.requests)
        return lowest(-view.match_ratio)


class LMetric(ViewPicker):
    """LMetric: new prefill tokens · batch size, both as they would be with this request there. No knobs."""

    plugin_type = "lab-lmetric"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        return lowest((view.prefill_tokens + view.uncached_tokens) * (view.requests + 1))


class LeastLoad(ViewPicker):
    """SMG's least_load: seconds of work there, and a price on KV use k: 0.15 · k / (1 − k)."""

    plugin_type = "lab-least-load"

    def best(self, cycle: Cycle, view: View) -> BoolArray:
        queued_tokens = view.prefill_tokens + view.uncached_tokens + view.decode_tokens
        k = np.minimum(view.kv_usage_ratio, 0.999)
        return lowest(queued_tokens / THROUGHPUT_TOKENS_PER_S + KV_PRESSURE_S * k / (1 - k))
