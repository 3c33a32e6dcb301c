"""The pool at one instant, as one immutable value.

A decision reads one Snapshot and nothing else of the outside world: the endpoints that live, and what is known of each,
as numpy arrays in one order (row i of every array is `endpoints[i]`). A value that is not known is NaN, never 0: a
server that was never scraped is unknown, not idle. Every row carries the time its signals were last read, so each
reader can say what age it still believes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from epp.pool.endpoint import Endpoint

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoraState:
    """LoRA adapters of one server, by the server's own word."""

    active: frozenset[str]
    waiting: frozenset[str]
    max_active: int


@dataclass(frozen=True, slots=True)
class EndpointSignals:
    """What one scrape of one server said. `None`: the page did not have it.

    Attributes:
        waiting_requests: requests queued inside the engine.
        running_requests: requests in the engine's current batch.
        kv_cache_usage_ratio: 0..1.
        kv_block_size_tokens, kv_blocks: the engine's cache geometry.
        lora: adapters, or `None` if the engine does not report any.
        restarts: how often the server behind the endpoint was seen to start anew, with an empty cache. Only a change of
            it means anything; `None` if it was never scraped.
        scraped_at_s: monotonic seconds at which the page was read; `None` if it never was.
    """

    waiting_requests: float | None = None
    running_requests: float | None = None
    kv_cache_usage_ratio: float | None = None
    kv_block_size_tokens: int | None = None
    kv_blocks: int | None = None
    lora: LoraState | None = None
    scraped_at_s: float | None = None
    restarts: int | None = None


UNKNOWN_SIGNALS = EndpointSignals()


def _column(values: list[float | None]) -> FloatArray:
    array = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Live endpoints and their signals. Build with `Snapshot.build`; never mutated, shared by all who see it.

    `version` grows with every build within one process; two snapshots with equal `endpoints_version` have the same
    endpoints in the same order, so that readers may cache row mappings by it.
    """

    version: int
    endpoints_version: int
    endpoints: tuple[Endpoint, ...]
    signals: tuple[EndpointSignals, ...] = field(repr=False)

    @staticmethod
    def build(
        endpoints: tuple[Endpoint, ...],
        signals: Mapping[str, EndpointSignals] | None = None,
        *,
        version: int = 0,
        endpoints_version: int = 0,
    ) -> "Snapshot":
        """A snapshot of `endpoints`, with `signals` keyed by endpoint id (absent: unknown)."""
        known = signals or {}
        return Snapshot(
            version=version,
            endpoints_version=endpoints_version,
            endpoints=endpoints,
            signals=tuple(known.get(e.id, UNKNOWN_SIGNALS) for e in endpoints),
        )

    def __len__(self) -> int:
        return len(self.endpoints)

    @cached_property
    def row_by_id(self) -> Mapping[str, int]:
        return {e.id: row for row, e in enumerate(self.endpoints)}

    @cached_property
    def row_by_address(self) -> Mapping[str, int]:
        return {e.address: row for row, e in enumerate(self.endpoints)}

    @cached_property
    def rows_by_host(self) -> Mapping[str, tuple[int, ...]]:
        """Every row of a host: its ranks, or servers that share it."""
        rows: dict[str, tuple[int, ...]] = {}
        for row, endpoint in enumerate(self.endpoints):
            rows[endpoint.host] = (*rows.get(endpoint.host, ()), row)
        return rows

    @cached_property
    def waiting_requests(self) -> FloatArray:
        return _column([s.waiting_requests for s in self.signals])

    @cached_property
    def running_requests(self) -> FloatArray:
        return _column([s.running_requests for s in self.signals])

    @cached_property
    def kv_cache_usage_ratio(self) -> FloatArray:
        return _column([s.kv_cache_usage_ratio for s in self.signals])

    @cached_property
    def scraped_at_s(self) -> FloatArray:
        """Monotonic seconds of the last good scrape, NaN if there was none."""
        return _column([s.scraped_at_s for s in self.signals])

    def age_s(self, now_s: float) -> FloatArray:
        """Seconds since each row was last scraped; +inf where it never was."""
        age = now_s - self.scraped_at_s
        age[np.isnan(age)] = np.inf
        return age
