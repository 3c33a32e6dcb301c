"""Picks the highest total score."""

from collections.abc import Sequence

import numpy as np

from epp.plugins._picking import CountingPicker
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray


class MaxScorePicker(CountingPicker):
    """First the highest total, then, with `maxNumOfEndpoints` above 1, the next ones as fallbacks in score order.

    Equal totals are in random order, so that equal servers get equal shares.
    """

    plugin_type = "max-score-picker"

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        if self.count == 1:
            best = totals.argmax()
            ties = (totals == totals[best]).nonzero()[0]
            return (int(candidates.rows[best if len(ties) == 1 else cycle.rng.choice(ties)]),)
        shuffled = np.array(cycle.rng.sample(range(len(candidates)), len(candidates)))
        order = shuffled[np.argsort(-totals[shuffled], kind="stable")]
        return [int(row) for row in candidates.rows[order[: self.count]]]
