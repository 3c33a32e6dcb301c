"""Picks by chance, whatever the scores."""

from collections.abc import Sequence

from epp.plugins._picking import CountingPicker
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray


class RandomPicker(CountingPicker):
    """Uniformly random, fallbacks included."""

    plugin_type = "random-picker"

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        rows = [int(row) for row in candidates.rows]
        return cycle.rng.sample(rows, min(self.count, len(rows)))
