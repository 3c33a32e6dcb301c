"""What scorers do with a server whose signals are unknown or old: it is neither favoured nor shunned.

One rule for all of them. A value counts for `STALE_AFTER_S` after it was read and, of a server that is idle and
therefore seldom read, until it is due to be read again. A server without a current value is given the mean of those
that have one, so a server that was never scraped, or whose metrics page froze while it looked idle, is not the
favourite. When no candidate has a current value, there is nothing to compare: all score `NEUTRAL`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from epp.pool.snapshot import FloatArray
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import BoolArray

STALE_AFTER_S = 2.0
"""Age up to which a scraped value is believed (the default of llm-d's metrics staleness threshold)."""

NEUTRAL = 0.5


class _Freshness(NamedTuple):
    """Which candidates' signals are believed, and up to when exactly these are.

    Attributes:
        believed: `None`: all of them, as a rule.
    """

    until_s: float
    believed: BoolArray | None


def is_fresh(candidates: Candidates, now_s: float, stale_after_s: float = STALE_AFTER_S) -> BoolArray:
    """Per candidate, whether its signals are believed."""
    believed = _freshness(candidates, now_s, stale_after_s).believed
    return np.ones(len(candidates), dtype=np.bool_) if believed is None else believed


def fresh(column: FloatArray, candidates: Candidates, now_s: float, stale_after_s: float = STALE_AFTER_S) -> FloatArray:
    """A snapshot's column cut down to the candidates, NaN where it is unknown or too old. Not to be written to."""
    values = candidates.take(column)
    believed = _freshness(candidates, now_s, stale_after_s).believed
    return values if believed is None else np.where(believed, values, np.nan)


def while_fresh(
    candidates: Candidates, now_s: float, whose: object, work_out: Callable[[Candidates, float], FloatArray]
) -> FloatArray:
    """What `work_out` makes of the candidates and the time, if nothing else goes into it but signals that are `fresh`.

    It is worked out once for all requests that see the same signals; between two readings those of a busy picker are
    many. It spares the default profile 10 µs of 65.
    """
    freshness = _freshness(candidates, now_s, STALE_AFTER_S)
    kept: tuple[_Freshness, FloatArray] | None = candidates.worked_out.get(whose)
    if kept is not None and kept[0] is freshness:
        return kept[1]
    values = work_out(candidates, now_s)
    values.flags.writeable = False
    candidates.worked_out[whose] = freshness, values
    return values


def _freshness(candidates: Candidates, now_s: float, stale_after_s: float) -> _Freshness:
    kept: _Freshness | None = candidates.worked_out.get(stale_after_s)
    if kept is not None and now_s <= kept.until_s:
        return kept
    snapshot = candidates.snapshot
    believed = candidates.take(snapshot.is_fresh(now_s, stale_after_s))
    until_s = np.fmax(candidates.take(snapshot.scraped_at_s) + stale_after_s, candidates.take(snapshot.current_until_s))
    first_to_go_s = np.minimum.reduce(until_s, where=believed, initial=np.inf)
    freshness = _Freshness(float(first_to_go_s), None if believed.all() else believed)
    candidates.worked_out[stale_after_s] = freshness
    return freshness


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
