"""A queue counts against a server in proportion to a fixed length, whatever the other servers' queues are."""

import numpy as np
from pydantic import Field

from epp.plugins._signals import fresh, known_or_mean, neutral, while_fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Parameters, Scorer, Services


class LoadAwareParameters(Parameters):
    threshold: int = Field(128, description="Waiting requests at which a server scores 0; 0 or less means 128.")


class LoadAwareScorer(Scorer):
    """score = 0.5 · (1 − min(q, T) / T), with q the waiting requests of a candidate and T the threshold.

    With T = 128, queues of 0, 32, 128 and 500 score 0.5, 0.375, 0 and 0. The best score is 0.5, as in llm-d.
    """

    plugin_type = "load-aware-scorer"
    parameters_model = LoadAwareParameters

    def __init__(self, name: str, parameters: LoadAwareParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._threshold = parameters.threshold if parameters.threshold > 0 else 128

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        return while_fresh(candidates, cycle.now_s, self, self._scores)

    def _scores(self, candidates: Candidates, now_s: float) -> FloatArray:
        waiting = known_or_mean(fresh(candidates.snapshot.waiting_requests, candidates, now_s))
        if waiting is None:
            return neutral(candidates)
        return 0.5 * (1.0 - np.minimum(waiting, self._threshold) / self._threshold)
