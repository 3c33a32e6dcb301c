"""How a metric family is declared here, and how its children are found at little cost.

Names begin with `llm_d_epp_`, the help text with the family's stability; both are llm-d's conventions.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "llm_d_epp_"

FamilyT = TypeVar("FamilyT", Counter, Gauge, Histogram)


def described(text: str) -> str:
    return f"[ALPHA] {text}"


class Families:
    """Declares families in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(PREFIX + name, described(text), labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(PREFIX + name, described(text), labels, registry=self.registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(PREFIX + name, described(text), labels, buckets=buckets, registry=self.registry)


class Children(Generic[FamilyT]):
    """The children of a family by their label values. Whoever asks bounds how many there can be."""

    def __init__(self, family: FamilyT) -> None:
        self.family: FamilyT = family
        self._by_labels: dict[tuple[str, ...], FamilyT] = {}

    def __getitem__(self, labels: tuple[str, ...]) -> FamilyT:
        child = self._by_labels.get(labels)
        if child is None:
            child = self._by_labels[labels] = self.family.labels(*labels)
        return child

    def remove_where(self, unwanted: Callable[[tuple[str, ...]], bool]) -> None:
        for labels in [labels for labels in self._by_labels if unwanted(labels)]:
            del self._by_labels[labels]
            self.family.remove(*labels)
