"""Fewer requests in the engine's batch is better."""

from epp.plugins._signals import fresh, known_or_mean, lowest_is_best, neutral, while_fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Scorer


class RunningRequestsSizeScorer(Scorer):
    """score = (max − r) / (max − min), with r the running requests of a candidate; all equal: 1 for all.

    Batches of 8, 16 and 24 score 1, 0.5 and 0. Takes no parameters.
    """

    plugin_type = "running-requests-size-scorer"

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        return while_fresh(candidates, cycle.now_s, self, _scores)


def _scores(candidates: Candidates, now_s: float) -> FloatArray:
    running = known_or_mean(fresh(candidates.snapshot.running_requests, candidates, now_s))
    return neutral(candidates) if running is None else lowest_is_best(running)
