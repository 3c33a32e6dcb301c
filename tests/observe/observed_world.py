"""A metrics object over a small pool, and a way to read a page as a scraper does."""

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.ledger import Ledger
from epp.observe.metrics import Metrics
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot


@dataclass
class World:
    """What the metrics look at, to be changed by a test."""

    snapshot: Snapshot
    ledger: Ledger = field(default_factory=Ledger)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    now_s: float = 100.0

    def metrics(self, *, legacy: bool = True, stream_metrics: bool = True) -> Metrics:
        return Metrics(
            self.registry,
            pool_name="pool",
            snapshot=lambda: self.snapshot,
            ledger=self.ledger,
            clock=lambda: self.now_s,
            legacy=legacy,
            stream_metrics=stream_metrics,
        )

    def page(self, *names: str) -> dict[str, float]:
        """`name{label=value,…}` (labels sorted) to value, of everything a scraper would see, or of the samples named.

        Reading a page of many labels takes seconds: name what is looked at.
        """
        out: dict[str, float] = {}
        shown = self.registry.restricted_registry(names) if names else self.registry
        for family in text_string_to_metric_families(generate_latest(shown).decode()):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                key = f"{sample.name}{{{labels}}}" if labels else sample.name
                assert key not in out, f"{key} is there twice"
                out[key] = sample.value
        return out


def endpoints(count: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint("ns", f"server-{i}", "10.0.0.1", 8000 + i) for i in range(count))


SnapshotOf = Callable[..., Snapshot]
