"""Picks by chance, in proportion to the total score."""

from collections.abc import Sequence

import numpy as np

from epp.plugins._picking import CountingPicker
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray


class WeightedRandomPicker(CountingPicker):
    """Totals of 3, 1 and 0 are picked first in 75 %, 25 % and 0 % of cases; if no total is above 0, all equally.

    Weighted sampling without replacement (Efraimidis and Spirakis' A-Res, as in llm-d): each candidate draws a key
    U^(1/score) with U uniform in (0, 1], and the highest keys win, in order. Fallbacks are thus drawn by the same
    weights from those that are left, and those with no score come last, in random order.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        uniform = 1.0 - np.array([cycle.rng.random() for _ in range(len(candidates))])
        # The logarithm of the key keeps the order and does not underflow for small scores.
        keys = np.full(len(candidates), -np.inf)
        with np.errstate(over="ignore"):
            np.divide(np.log(uniform), totals, out=keys, where=totals > 0)
        order = np.lexsort((uniform, keys))[::-1]
        return [int(row) for row in candidates.rows[order[: self.count]]]
