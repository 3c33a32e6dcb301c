"""How likely it is that something takes no longer than a target allows."""

import numpy as np

from epp.scheduling.data import FloatArray

_NORMAL_TO_LOGISTIC = 1.702  # 1 / (1 + exp(-1.702 z)) is within 0.01 of the normal distribution
_MOST_EXPONENT = 40.0
_LEAST_EXPECTED_MS = 1e-6  # 0 has no logarithm
_LEAST_SPREAD = 0.1

LEAST_TARGET_MS = 1e-3  # below, all are late


def within(target_ms: float | FloatArray, expected_ms: FloatArray, spread: float | FloatArray) -> FloatArray:
    """Probability that what is expected to take `expected_ms` takes less than the target: a lognormal, nearly.

    Args:
        target_ms: above 0; `inf`: none, so that all is within.
        spread: standard deviation of log(actual / expected); as much as 0.1 if it is less.
    """
    z = (np.log(target_ms) - np.log(np.maximum(expected_ms, _LEAST_EXPECTED_MS))) / np.maximum(spread, _LEAST_SPREAD)
    likely: FloatArray = 1.0 / (1.0 + np.exp(np.clip(-_NORMAL_TO_LOGISTIC * z, -_MOST_EXPONENT, _MOST_EXPONENT)))
    return likely
