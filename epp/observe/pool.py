"""Families about the pool: load as the servers report it, and as we count it ourselves.

Averages are over endpoints whose signals are fresh and known. When there are none there is no average: the series goes
away, because 0 would say idle.
"""

from collections.abc import Callable, Iterator
from math import isnan

import numpy as np
from prometheus_client import Metric
from prometheus_client.registry import Collector

from epp.ledger import Ledger
from epp.observe.families import PREFIX, Families, Gauge, described
from epp.observe.readings import Reading, ReadMetric
from epp.pool.snapshot import FloatArray, Snapshot

POOL_LABEL = "name"
DECIMALS = 2  # llm-d rounds its averages


class PoolMetrics:
    """Gauges that are refreshed on a timer."""

    def __init__(self, families: Families, pool_name: str) -> None:
        self._pool_name = pool_name

        def gauge(name: str, text: str) -> Gauge:
            return families.gauge(name, text, (POOL_LABEL,))

        self.average_kv_cache_usage = gauge("average_kv_cache_utilization", "Mean KV cache usage, 0 to 1.")
        self.average_queue_size = gauge("average_queue_size", "Mean of requests waiting in a model server.")
        self.average_running_requests = gauge("average_running_requests", "Mean of requests running in a model server.")
        self._std_dev_kv_cache_usage = gauge("std_dev_kv_cache_utilization", "Standard deviation of KV cache usage.")
        self._std_dev_queue_size = gauge("std_dev_queue_size", "Standard deviation of waiting requests.")
        self._std_dev_running_requests = gauge("std_dev_running_requests", "Standard deviation of running requests.")
        self.ready_endpoints = gauge("ready_endpoints", "Endpoints whose signals are fresh.")
        self._stale_endpoints = gauge("stale_endpoints", "Endpoints whose signals are stale or were never read.")

    def refresh(self, snapshot: Snapshot, now_s: float, staleness_s: float) -> None:
        fresh = snapshot.is_fresh(now_s, staleness_s)
        count = int(fresh.sum())
        self.ready_endpoints[self._pool_name,].set(count)
        self._stale_endpoints[self._pool_name,].set(len(snapshot) - count)
        for column, average, deviation in (
            (snapshot.kv_cache_usage_ratio, self.average_kv_cache_usage, self._std_dev_kv_cache_usage),
            (snapshot.waiting_requests, self.average_queue_size, self._std_dev_queue_size),
            (snapshot.running_requests, self.average_running_requests, self._std_dev_running_requests),
        ):
            values = column[fresh & ~np.isnan(column)]
            self._set(average, float(values.mean()) if values.size else None)
            self._set(deviation, sample_deviation(values) if values.size else None)

    def _set(self, gauge: Gauge, value: float | None) -> None:
        if value is None:
            gauge.clear()
        else:
            gauge[self._pool_name,].set(round(value, DECIMALS))


def sample_deviation(values: FloatArray) -> float:
    """With n − 1 in the denominator; of a single value it is 0."""
    return float(values.std(ddof=1)) if values.size > 1 else 0.0


class QueueSizeCollector(Collector):
    """Waiting requests of every endpoint, computed when asked. Endpoints that never said are left out."""

    def __init__(self, pool_name: str, snapshot: Callable[[], Snapshot]) -> None:
        self._pool_name = pool_name
        self._snapshot = snapshot

    def read(self) -> Reading:
        snapshot = self._snapshot()
        return Reading(
            PREFIX + "per_endpoint_queue_size",
            described("Requests waiting in each model server."),
            "gauge",
            (POOL_LABEL, "model_server_endpoint"),
            [
                ((self._pool_name, endpoint.name), (waiting,))
                for endpoint, waiting in zip(snapshot.endpoints, snapshot.waiting_requests.tolist(), strict=True)
                if not isnan(waiting)
            ],
        )

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        yield ReadMetric.of(self.read())


class InFlightCollector(Collector):
    """What we ourselves have in flight on each endpoint of the pool, by the ledger, computed when asked."""

    def __init__(self, snapshot: Callable[[], Snapshot], ledger: Ledger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        endpoints = self._snapshot().endpoints
        in_flight = [self._ledger.in_flight(endpoint.id) for endpoint in endpoints]
        labels = [(endpoint.name, endpoint.namespace) for endpoint in endpoints]
        for name, text, numbers in (
            ("inflight_requests", "Requests sent to an endpoint and not ended.", [of.requests for of in in_flight]),
            (
                "inflight_tokens",
                "Tokens that these requests still have to prefill or to generate.",
                [of.tokens for of in in_flight],
            ),
        ):
            children = [(values, (number,)) for values, number in zip(labels, numbers, strict=True)]
            label_names = ("endpoint_name", "namespace")
            yield ReadMetric.of(Reading(PREFIX + name, described(text), "gauge", label_names, children))
