"""Older names of families, for dashboards that still ask for them.

Nothing is counted twice: a twin is computed from its family when somebody scrapes, by renaming labels and summing over
those that the older family did not have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.registry import Collector

from epp.observe.readings import Reading, ReadMetric

BY_MODEL = {"model_name": "model_name", "target_model_name": "target_model_name"}


class Source(Protocol):
    def read(self) -> Reading:
        """As it is now."""


@dataclass(frozen=True, slots=True)
class Twin:
    """
    Attributes:
        source: the family that counts.
        name: the older name; of a counter without `_total`.
        labels: current label to older label; the others are summed over.
    """

    source: Source
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        current = self.source.read()
        suffix = "_total" if current.kind == "counter" else ""
        text = f"[Deprecated: Use {current.name}{suffix}] {current.text.partition('] ')[2]}"
        # Of the same moment as all else; summed when it is written.
        yield ReadMetric(self.name, text, current.kind, lambda: current.twin(self.name, text, self.labels))


class LegacyCollector(Collector):
    def __init__(self, twins: Sequence[Twin]) -> None:
        self._twins = tuple(twins)

    def describe(self) -> Iterator[Metric]:
        for metric in self.collect():
            yield Metric(metric.name, metric.documentation, metric.type)

    def collect(self) -> Iterator[Metric]:
        for twin in self._twins:
            yield from twin.collect()
