"""Counts of all workers in one page of metrics.

A worker tells what it has counted since it last told, so the parent just adds, and what was told outlives the worker.
Gauges are told as they are: of those that add up the parent knows each worker's share, and drops it with the worker; of
the others the newest stands.
"""

from collections.abc import Iterable
from typing import NamedTuple

from epp.observe.families import Buckets, Counter, Families, Gauge, Histogram
from epp.observe.readings import Labels


class Count(NamedTuple):
    """One child of one family.

    Attributes:
        values: of a counter what it grew by, of a gauge its value, of a histogram what its sum and each of its buckets
            grew by.
    """

    family: str
    labels: Labels
    values: tuple[float, ...]


class CountSender:
    """A worker's side."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._told: dict[str, dict[Labels, tuple[float, ...]]] = {}

    def changes(self) -> list[Count]:
        """Since the last call."""
        counts = []
        for name, family in self._families.by_name.items():
            told = self._told.get(name, {})
            now = {labels: _values(child) for labels, child in family.children.items()}
            for labels, values in now.items():
                before = told.get(labels)
                if before == values:
                    continue
                if isinstance(family, Gauge) or before is None or _is_anew(before, values):
                    counts.append(Count(name, labels, values))
                else:
                    counts.append(Count(name, labels, tuple(n - b for n, b in zip(values, before, strict=True))))
            if isinstance(family, Gauge):
                counts += [Count(name, labels, ()) for labels in told.keys() - now.keys()]
            self._told[name] = now
        return counts


def _values(child: object) -> tuple[float, ...]:
    if isinstance(child, Buckets):
        return child.sum, *child.counts
    return (child.value,)  # type: ignore[attr-defined]


def _is_anew(before: tuple[float, ...], now: tuple[float, ...]) -> bool:
    """The child was removed and came again; nothing else makes a count smaller."""
    return sum(now[1:] or now) < sum(before[1:] or before)


class CountReceiver:
    """The parent's side: adds what workers counted to its own families."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._shares: dict[tuple[str, Labels], dict[int, float]] = {}

    def add(self, worker: int, counts: Iterable[Count]) -> None:
        for name, labels, values in counts:
            family = self._families.by_name.get(name)
            if isinstance(family, Counter):
                family[labels].value += values[0]
            elif isinstance(family, Histogram):
                buckets = family[labels]
                buckets.sum += values[0]
                for number, grown in enumerate(values[1:]):
                    buckets.counts[number] += int(grown)
            elif isinstance(family, Gauge):
                self._set(worker, family, labels, values[0] if values else None)

    def gone(self, worker: int) -> None:
        """Drop its shares; what it counted stays counted."""
        for (name, labels), shares in self._shares.items():
            family = self._families.by_name.get(name)
            if shares.pop(worker, None) is not None and isinstance(family, Gauge):
                family[labels].set(sum(shares.values()))

    def _set(self, worker: int, gauge: Gauge, labels: Labels, value: float | None) -> None:
        if not gauge.adds_up:
            if value is not None:
                gauge[labels].set(value)
            return
        shares = self._shares.setdefault((gauge.name, labels), {})
        shares[worker] = value or 0.0
        gauge[labels].set(sum(shares.values()))
