"""Metric families that cost next to nothing to count in.

Counting is done here and not by prometheus-client, because its own types lock twice per observation and this happens
tens of times per request, always on one thread. A family is one of its collectors: it holds plain numbers by label
values, and copies them when somebody scrapes; see `epp.observe.readings`.

Names begin with `llm_d_epp_`, the help text with the family's stability; both are llm-d's conventions.
"""

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from epp.observe.readings import Child, Labels, Reading, ReadMetric

PREFIX = "llm_d_epp_"


class Value:
    """One counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self) -> None:
        self.value += 1

    def dec(self) -> None:
        self.value -= 1

    def set(self, value: float) -> None:
        self.value = value


class Buckets:
    """One histogram."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


ChildT = TypeVar("ChildT", Value, Buckets)


class Family(Collector, Generic[ChildT]):
    """Children by label values, `family["a", "b"].inc()`; whoever asks bounds how many there can be."""

    kind: str
    _bound_texts: tuple[str, ...] = ()

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name = PREFIX + name
        self._text = described(text)
        self.label_names = tuple(labels)
        self._children: dict[Labels, ChildT] = {}

    def __getitem__(self, labels: Labels) -> ChildT:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._new_child()
        return child

    def remove_where(self, unwanted: Callable[[Labels], bool]) -> None:
        for labels in [labels for labels in self._children if unwanted(labels)]:
            del self._children[labels]

    def clear(self) -> None:
        self._children.clear()

    @property
    def children(self) -> Mapping[Labels, ChildT]:
        """All there are, by label values."""
        return self._children

    def describe(self) -> Iterator[Metric]:
        yield Metric(self.name, self._text, self.kind)

    def read(self) -> Reading:
        """As it is now."""
        return Reading(self.name, self._text, self.kind, self.label_names, self._read_children(), self._bound_texts)

    def collect(self) -> Iterator[Metric]:
        yield ReadMetric.of(self.read())

    @abstractmethod
    def _new_child(self) -> ChildT: ...

    @abstractmethod
    def _read_children(self) -> list[Child]: ...


class Counter(Family[Value]):
    """`name` is without `_total`."""

    kind = "counter"

    def _new_child(self) -> Value:
        return Value()

    def _read_children(self) -> list[Child]:
        return [(labels, (child.value,)) for labels, child in self._children.items()]


class Gauge(Family[Value]):
    """`adds_up`: the gauges of several processes make one by addition; else the newest stands for all."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Sequence[str], *, adds_up: bool = False) -> None:
        super().__init__(name, text, labels)
        self.adds_up = adds_up

    def _new_child(self) -> Value:
        return Value()

    def _read_children(self) -> list[Child]:
        return [(labels, (child.value,)) for labels, child in self._children.items()]


class Histogram(Family[Buckets]):
    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._bound_texts = tuple(map(_bound_text, (*bounds, math.inf)))

    def _new_child(self) -> Buckets:
        return Buckets(self._bounds)

    def _read_children(self) -> list[Child]:
        return [(labels, (*child.counts, child.sum)) for labels, child in self._children.items()]


class Families:
    """Declares families in one registry. Those without labels have their one child from the start.

    Attributes:
        by_name: all that were declared, by their name with the prefix.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.by_name: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return self._registered(Counter(name, text, labels))

    def gauge(self, name: str, text: str, labels: Sequence[str] = (), *, adds_up: bool = False) -> Gauge:
        """`adds_up`: see `Gauge`."""
        return self._registered(Gauge(name, text, labels, adds_up=adds_up))

    def histogram(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return self._registered(Histogram(name, text, labels, bounds))

    def _registered(self, family: "FamilyT") -> "FamilyT":
        self._registry.register(family)
        self.by_name[family.name] = family
        if not family.label_names:
            family[()]  # a family of one series shows 0 before anything happened
        return family


FamilyT = TypeVar("FamilyT", Counter, Gauge, Histogram)


def described(text: str) -> str:
    return f"[ALPHA] {text}"


def _bound_text(bound: float) -> str:
    """As Go writes it, so that `le` values equal llm-d's."""
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text
