"""A server that has the request's LoRA adapter loaded is better than one that must load it."""

import numpy as np

from epp.plugins._signals import is_fresh, known_or_mean, neutral
from epp.pool.snapshot import LoraState
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Scorer


class LoraAffinityScorer(Scorer):
    """By the state of the adapter (the request's target model) on a candidate:

    * loaded: 1.0
    * not loaded, and there is room for one more (loaded + waiting < the server's maximum): 0.8
    * waiting to be loaded: 0.6
    * no room: 0.0

    A server that reports no adapters at all scores 0. One whose signals are unknown or stale scores the mean of the
    others. Takes no parameters.
    """

    plugin_type = "lora-affinity-scorer"

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        signals = candidates.snapshot.signals
        adapter = cycle.request.target_model
        scores = np.array([_score(signals[row].lora, adapter) for row in candidates.rows])
        scores[~is_fresh(candidates, cycle.now_s)] = np.nan
        known = known_or_mean(scores)
        return neutral(candidates) if known is None else known


def _score(lora: LoraState | None, adapter: str | None) -> float:
    if lora is None:
        return 0.0
    if adapter in lora.active:
        return 1.0
    if len(lora.active) + len(lora.waiting) < lora.max_active:
        return 0.8
    return 0.6 if adapter in lora.waiting else 0.0
