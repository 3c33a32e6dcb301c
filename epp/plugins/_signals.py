"""What scorers do with a server whose signals are unknown or old: it is neither favoured nor shunned.

One rule for all of them. A value counts for `STALE_AFTER_S` after it was read and, of a server that is idle and
therefore seldom read, until it is due to be read again. A server without a current value is given the mean of those
that have one, so a server that was never scraped, or whose metrics page froze while it looked idle, is not the
favourite. When no candidate has a current value, there is nothing to compare: all score `NEUTRAL`.
"""

import numpy as np
import numpy.typing as npt

from epp.pool.snapshot import FloatArray
from epp.scheduling.candidates import Candidates

STALE_AFTER_S = 2.0
"""Age up to which a scraped value is believed (the default of llm-d's metrics staleness threshold)."""

NEUTRAL = 0.5


def is_fresh(candidates: Candidates, now_s: float, stale_after_s: float = STALE_AFTER_S) -> npt.NDArray[np.bool_]:
    """Per candidate, whether its signals are believed."""
    believed: npt.NDArray[np.bool_] = candidates.snapshot.is_fresh(now_s, stale_after_s)[candidates.rows]
    return believed


def fresh(column: FloatArray, candidates: Candidates, now_s: float, stale_after_s: float = STALE_AFTER_S) -> FloatArray:
    """A snapshot's column cut down to the candidates, NaN where it is unknown or too old. Not to be written to."""
    values = candidates.take(column)
    if not len(values):
        return values
    # As a rule all are fresh: the oldest is. (If one was never read, it is NaN, which compares false.)
    oldest_s = np.minimum.reduce(candidates.take(candidates.snapshot.scraped_at_s))
    if now_s - oldest_s <= stale_after_s:
        return values
    return np.where(is_fresh(candidates, now_s, stale_after_s), values, np.nan)


def known_or_mean(values: FloatArray) -> FloatArray | None:
    """Unknown (NaN) values replaced by the mean of the known ones; `None` when nothing is known."""
    if not values.size:
        return None
    lowest = np.minimum.reduce(values)
    if lowest == lowest:  # as a rule: no NaN among them
        return values
    unknown = np.isnan(values)
    if unknown.all():
        return None
    return np.where(unknown, values[~unknown].mean(), values)


def neutral(candidates: Candidates) -> FloatArray:
    return np.full(len(candidates), NEUTRAL)


def lowest_is_best(values: FloatArray) -> FloatArray:
    """1 for the lowest value, 0 for the highest, linear between; 1 for all when all are equal."""
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    return np.ones_like(values) if high == low else (high - values) / (high - low)
