"""Fewer requests waiting inside the engine is better."""

from epp.plugins._signals import fresh, known_or_mean, lowest_is_best, neutral, while_fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Scorer


class QueueScorer(Scorer):
    """score = (max − q) / (max − min), with q the waiting requests of a candidate; all equal: 1 for all.

    Queues of 0, 5 and 10 score 1, 0.5 and 0. Takes no parameters.
    """

    plugin_type = "queue-scorer"

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        return while_fresh(candidates, cycle.now_s, self, _scores)


def _scores(candidates: Candidates, now_s: float) -> FloatArray:
    waiting = known_or_mean(fresh(candidates.snapshot.waiting_requests, candidates, now_s))
    return neutral(candidates) if waiting is None else lowest_is_best(waiting)
