"""Families about the API server: how old its word is, what it refused, and who leads."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.observe.families import PREFIX, Families, described
from epp.observe.pool import POOL_LABEL


class KubeMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        pool_name: str,
        *,
        age_s: Callable[[], float | None],
        is_leader: Callable[[], bool] | None,
    ) -> None:
        """`is_leader`: `None` without an election."""
        families = Families(registry)
        self._errors = families.counter(
            "kubernetes_api_errors", "What the API server did not do, by resource and reason.", ("resource", "reason")
        )
        registry.register(_Asked(pool_name, "pool_snapshot_age_seconds", "How long the API server was silent.", age_s))
        if is_leader is not None:
            registry.register(
                _Asked(pool_name, "leader", "1 on the picker that leads, else 0.", lambda: float(is_leader()))
            )

    def count_error(self, resource: str, reason: str) -> None:
        self._errors[resource, reason].inc()


class _Asked(Collector):
    """A gauge that is computed when asked; while there is no value there is no series."""

    def __init__(self, pool_name: str, name: str, text: str, value: Callable[[], float | None]) -> None:
        self._pool_name = pool_name
        self._name = name
        self._text = text
        self._value = value

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(PREFIX + self._name, described(self._text), labels=(POOL_LABEL,))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for family in self.describe():
            value = self._value()
            if value is not None:
                family.add_metric((self._pool_name,), value)
            yield family
