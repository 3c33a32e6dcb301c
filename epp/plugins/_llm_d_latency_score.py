"""llm-d's own arithmetic of latency scores, for those who depend on it: min-max within groups, in steps of 1 %."""

import numpy as np

from epp.scheduling.data import FloatArray, IntArray, LatencyPrediction

FLAT_MS = 1e-9


def llm_d_scores(
    prediction: LatencyPrediction, rows: IntArray, ttft_weight: float, tpot_weight: float, *, strategy: str
) -> FloatArray:
    """Scores of `rows`, of which at least one has a prediction. A missing headroom is one of 0 ms.

    Those with both headrooms at 0 or above are scored by `strategy`, the others 0. If there are none, by "least": the
    idle ones if there are any, else the first of these groups that has a member: those that miss only TPOT, only TTFT,
    both.
    """
    ttft = np.nan_to_num(prediction.ttft_headroom_ms[rows])
    tpot = np.nan_to_num(prediction.tpot_headroom_ms[rows])
    positive = (ttft >= 0) & (tpot >= 0)
    idle = prediction.requests[rows] == 0
    groups = (positive, idle, (ttft >= 0) & (tpot < 0), (ttft < 0) & (tpot >= 0), (ttft < 0) & (tpot < 0))
    group = next(group for group in groups if group.any())
    scores = np.zeros(len(rows))
    most = strategy == "most" and group is positive
    scores[group] = _scored(np.abs(ttft[group]), np.abs(tpot[group]), ttft_weight, tpot_weight, most=most)
    return scores


def _scored(ttft: FloatArray, tpot: FloatArray, ttft_weight: float, tpot_weight: float, *, most: bool) -> FloatArray:
    total = ttft_weight + tpot_weight
    alpha, beta = (ttft_weight / total, tpot_weight / total) if total > 0 else (1.0, 0.0)
    flat_ttft, flat_tpot = np.ptp(ttft) <= FLAT_MS, np.ptp(tpot) <= FLAT_MS
    if flat_ttft != flat_tpot:
        alpha, beta = (0.0, 1.0) if flat_ttft else (1.0, 0.0)
    combined = alpha * _normalised(ttft) + beta * _normalised(tpot)
    steps: FloatArray = np.floor((combined if most else 1.0 - combined) * 100.0) + 1.0
    return np.minimum(steps / 100.0, 1.0)


def _normalised(values: FloatArray) -> FloatArray:
    extent = np.ptp(values)
    return np.full_like(values, 0.5) if extent <= FLAT_MS else (values - values.min()) / extent
