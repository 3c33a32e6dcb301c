"""Older names of families, for dashboards that still ask for them.

Nothing is counted twice: a twin is computed from its family when somebody scrapes, by renaming labels and summing over
those that the older family did not have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.registry import Collector

BY_MODEL = {"model_name": "model_name", "target_model_name": "target_model_name"}


@dataclass(frozen=True, slots=True)
class Twin:
    """
    Attributes:
        source: the family that counts.
        name: the older name; of a counter without `_total`.
        labels: current label to older label; the others are summed over.
    """

    source: Collector
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        for current in self.source.collect():
            yield self._translate(current)

    def _translate(self, current: Metric) -> Metric:
        suffix = "_total" if current.type == "counter" else ""
        text = f"[Deprecated: Use {current.name}{suffix}] {current.documentation.partition('] ')[2]}"
        twin = Metric(self.name, text, current.type)
        values: dict[tuple[str, ...], dict[tuple[str, str | None], float]] = {}
        for sample in current.samples:
            key = tuple(sample.labels[label] for label in self.labels)
            part = (sample.name.removeprefix(current.name), sample.labels.get("le"))
            parts = values.setdefault(key, {})
            parts[part] = parts.get(part, 0.0) + sample.value
        for key, parts in values.items():
            labels = dict(zip(self.labels.values(), key, strict=True))
            for (sample_suffix, bound), value in parts.items():
                twin.add_sample(self.name + sample_suffix, labels if bound is None else {**labels, "le": bound}, value)
        return twin


class LegacyCollector(Collector):
    def __init__(self, twins: Sequence[Twin]) -> None:
        self._twins = tuple(twins)

    def describe(self) -> Iterator[Metric]:
        for metric in self.collect():
            yield Metric(metric.name, metric.documentation, metric.type)

    def collect(self) -> Iterator[Metric]:
        for twin in self._twins:
            yield from twin.collect()
