"""How close candidates are to the best of them, when small differences are noise."""

from math import isnan
from typing import NamedTuple

import numpy as np

from epp.scheduling.data import FloatArray

MIN_BEST_MS = 1e-3


class Scale(NamedTuple):
    """Attributes:
    tolerance_ratio, tolerance_ms: differences below the larger of the two are none.
    sharpness: n times as slow as the best scores n^-sharpness.
    """

    tolerance_ratio: float
    tolerance_ms: float
    sharpness: float


def closeness(cost_ms: FloatArray, predicted_ms: FloatArray, scale: Scale) -> FloatArray | None:
    """1 for the lowest cost and all within the tolerance of it, towards 0 for higher ones; `None` if no cost is known.

    Differences of cost are measured against what the candidate of the lowest cost is predicted to take, so that 1 ms
    never weighs like 1 s. Candidates whose cost is not known (NaN) are not compared and score 1.
    """
    cheapest = cost_ms.argmin()
    lowest_ms = float(cost_ms[cheapest])
    if isnan(lowest_ms):  # NaN counts as the lowest
        cheapest = np.fmin(cost_ms, np.inf).argmin()
        lowest_ms = float(cost_ms[cheapest])
        if isnan(lowest_ms):
            return None
    best_ms = max(float(predicted_ms[cheapest]), MIN_BEST_MS)
    tolerance_ms = max(scale.tolerance_ratio * best_ms, scale.tolerance_ms)
    excess_ms = np.fmax(cost_ms - (lowest_ms + tolerance_ms), 0.0)
    scores: FloatArray = (best_ms / (best_ms + excess_ms)) ** scale.sharpness
    return scores
