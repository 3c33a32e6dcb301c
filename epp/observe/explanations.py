"""What plugins explain of the candidates, for the decision record: how much of it is kept, and how it is shown.

It is a dozen numbers for each candidate. They are kept as they came, by reference, unless the pool is large: then only
those of the candidates that will be shown. So a record stays small, and what a decision used is free for the next.
A column that has not one number per candidate is a mistake in its plugin, and left out.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from epp.scheduling.cycle import Explained, Explanation
from epp.scheduling.data import FloatArray, IntArray

MAX_WHOLE_ROWS = 64  # kept as they came: half a KB per column
DIGITS = 6  # behind the point

Explanations = Mapping[tuple[str, str], Explanation]
"""By the names of the profile and of the plugin."""

Numbers = dict[str, dict[str, float | None]]
"""By plugin, and by the name of the value. `None`: not known."""


def bounded(explanations: Explanations, shown: Mapping[str, IntArray]) -> Explanations:
    """With few rows each. `shown`: by profile, the snapshot rows that will be."""
    return {
        key: _cut(explanation, np.sort(shown[key[0]])) for key, explanation in explanations.items() if key[0] in shown
    }


def _cut(explanation: Explanation, rows: IntArray) -> Explanation:
    whole, values = explanation
    if len(whole) <= MAX_WHOLE_ROWS:
        return explanation
    at = whole.searchsorted(rows)
    at = at[whole.take(at, mode="clip") == rows]
    kept: dict[str, Explained] = {}
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            kept[name] = value
        elif value.shape == whole.shape:
            kept[name] = value[at]
    return Explanation(whole[at], kept)


def numbers(explanations: Explanations, profile: str, rows: Sequence[int]) -> tuple[Numbers, list[Numbers]]:
    """What is the same for all candidates, and what is not, for each of these snapshot rows that was looked at."""
    of_all: Numbers = {}
    of_each: list[Numbers] = [{} for _ in rows]
    for (name_of_profile, plugin), (looked_at, values) in explanations.items():
        if name_of_profile != profile:
            continue
        columns = {n: v for n, v in values.items() if isinstance(v, np.ndarray) and v.shape == looked_at.shape}
        place_of = {row: place for place, row in enumerate(looked_at.tolist())}
        known = [(shown, place_of[row]) for shown, row in zip(of_each, rows, strict=True) if row in place_of]
        if columns and known:
            table = _table(np.array(list(columns.values()), dtype=np.float64)[:, [place for _, place in known]])
            for (shown, _), row_of_table in zip(known, table, strict=True):
                shown[plugin] = dict(zip(columns, row_of_table, strict=True))
        single = {n: number(v) for n, v in values.items() if not isinstance(v, np.ndarray)}
        if single:
            of_all[plugin] = single
    return of_all, of_each


def _table(columns: FloatArray) -> list[list[float | None]]:
    """By row, with `number` of each: in one go, since a page has some fifty thousand."""
    with np.errstate(over="ignore"):
        rounded = columns.T.round(DIGITS)
    if not np.isfinite(rounded).all():
        return [[number(value) for value in row] for row in columns.T.tolist()]
    table: list[list[float | None]] = rounded.tolist()
    return table


def number(value: float | None) -> float | None:
    """JSON knows no NaN and no infinity."""
    return round(float(value), DIGITS) if value is not None and math.isfinite(value) else None
