"""What plugins explain of the candidates, for the decision record: how much of it is kept, and how it is shown.

It is a dozen numbers for each candidate, kept as they came, by reference: of all recorded decisions in pools of up to
128 endpoints, in larger ones of fewer, the newest. To cut each down to what will be shown would cost each decision more
than is gained. A column that has not one number per candidate is a mistake in its plugin, and not shown.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from epp.scheduling.cycle import Explanation
from epp.scheduling.data import FloatArray

MAX_ROWS_KEPT = 128 * 256  # at fifteen numbers for each, 4 MB
DIGITS = 6  # behind the point

Explanations = Mapping[tuple[str, str], Explanation]
"""By the names of the profile and of the plugin."""

Numbers = dict[str, dict[str, float | None]]
"""By plugin, and by the name of the value. `None`: not known."""


class Newest:
    """Sees to it that explanations of old decisions are let go of."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: at most of so many decisions."""
        self._capacity = capacity
        self._held: deque[tuple[int, dict[tuple[str, str], Explanation]]] = deque()
        self._rows = 0

    def add(self, explanations: dict[tuple[str, str], Explanation]) -> None:
        """Of one more decision. They are emptied when their time has come."""
        rows = sum([len(explanation.rows) for explanation in explanations.values()])
        self._held.append((rows, explanations))
        self._rows += rows
        while len(self._held) > 1 and (self._rows > MAX_ROWS_KEPT or len(self._held) > self._capacity):
            rows, oldest = self._held.popleft()
            self._rows -= rows
            oldest.clear()


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
