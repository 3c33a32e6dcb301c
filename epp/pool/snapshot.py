"""The pool at one instant, as one immutable value.

A decision reads one Snapshot and nothing else of the outside world: the endpoints that live, and what is known of each,
as numpy arrays in one order (row i of every array is `endpoints[i]`). A value that is not known is NaN, never 0: a
server that was never scraped is unknown, not idle. Every row carries the time its signals were last read, and the time
up to which they count as current, so each reader can say what it still believes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from epp.pool.endpoint import Endpoint

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


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
        current_until_s: monotonic seconds up to which what the page said is believed whatever its age: the server was
            idle, we have sent nothing there, and the next reading is not due before. `None`: there is no such promise.
    """

    waiting_requests: float | None = None
    running_requests: float | None = None
    kv_cache_usage_ratio: float | None = None
    kv_block_size_tokens: int | None = None
    kv_blocks: int | None = None
    lora: LoraState | None = None
    scraped_at_s: float | None = None
    restarts: int | None = None
    current_until_s: float | None = None


class EngineCache(NamedTuple):
    """One server's KV cache as far as it is known, and which of its lives this one is."""

    block_size_tokens: int | None
    blocks: int | None
    restarts: int | None


UNKNOWN_SIGNALS = EndpointSignals()


# Rows of `Snapshot.columns`.
_WAITING, _RUNNING, _KV_USAGE, _SCRAPED_AT, _CURRENT_UNTIL = range(5)
COLUMNS = 5


def column_values(signals: EndpointSignals) -> tuple[float, ...]:
    """One endpoint's numbers in the order of `Snapshot.columns`, NaN for what is not known."""
    waiting, running, kv_usage = signals.waiting_requests, signals.running_requests, signals.kv_cache_usage_ratio
    scraped_at_s, current_until_s = signals.scraped_at_s, signals.current_until_s
    return (
        math.nan if waiting is None else waiting,
        math.nan if running is None else running,
        math.nan if kv_usage is None else kv_usage,
        math.nan if scraped_at_s is None else scraped_at_s,
        math.nan if current_until_s is None else current_until_s,
    )


def cache_of(signals: EndpointSignals) -> EngineCache:
    return EngineCache(signals.kv_block_size_tokens, signals.kv_blocks, signals.restarts)


def caches_of(signals: Iterable[EndpointSignals]) -> tuple[EngineCache, ...]:
    return tuple(cache_of(row) for row in signals)


class Roster:
    """Endpoints in one order, and where each of them stands in it. Shared by all snapshots of the same endpoints."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints = endpoints

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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Live endpoints and their signals. Never mutated, shared by all who see it.

    Attributes:
        version: grows with every snapshot of one process.
        caches: the very same tuple as that of another snapshot means that no endpoint and no cache differs.
        roster: two snapshots with equal `endpoints_version` have the same endpoints in the same order, so that readers
            may cache row mappings by it.
        columns: a row for each number, a column for each endpoint.
    """

    version: int
    endpoints_version: int
    roster: Roster = field(repr=False)
    caches: tuple[EngineCache, ...] = field(repr=False)
    signals: tuple[EndpointSignals, ...] = field(repr=False)
    columns: FloatArray = field(repr=False)

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
        rows = tuple(known.get(e.id, UNKNOWN_SIGNALS) for e in endpoints)
        columns = np.array([column_values(row) for row in rows], dtype=np.float64).reshape(-1, COLUMNS).T
        columns.flags.writeable = False
        return Snapshot(version, endpoints_version, Roster(endpoints), caches_of(rows), rows, columns)

    def __len__(self) -> int:
        return len(self.signals)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self.roster.endpoints

    @property
    def row_by_id(self) -> Mapping[str, int]:
        return self.roster.row_by_id

    @property
    def row_by_address(self) -> Mapping[str, int]:
        return self.roster.row_by_address

    @property
    def rows_by_host(self) -> Mapping[str, tuple[int, ...]]:
        """Every row of a host: its ranks, or servers that share it."""
        return self.roster.rows_by_host

    def _column(self, number: int) -> FloatArray:
        column: FloatArray = self.columns[number]
        return column

    @property
    def waiting_requests(self) -> FloatArray:
        return self._column(_WAITING)

    @property
    def running_requests(self) -> FloatArray:
        return self._column(_RUNNING)

    @property
    def kv_cache_usage_ratio(self) -> FloatArray:
        return self._column(_KV_USAGE)

    @property
    def scraped_at_s(self) -> FloatArray:
        """Monotonic seconds of the last good scrape, NaN if there was none."""
        return self._column(_SCRAPED_AT)

    @property
    def current_until_s(self) -> FloatArray:
        """Monotonic seconds up to which each row is believed whatever its age, NaN if there is no such promise."""
        return self._column(_CURRENT_UNTIL)

    def age_s(self, now_s: float) -> FloatArray:
        """Seconds since each row was last scraped; +inf where it never was."""
        ages_s = now_s - self.scraped_at_s
        ages_s[np.isnan(ages_s)] = np.inf
        return ages_s

    def is_fresh(self, now_s: float, stale_after_s: float) -> BoolArray:
        """Per row, whether it is believed: read no longer than `stale_after_s` ago, or not due to be read again yet.

        A server that is idle, and that we send nothing, is as it was; so it is read seldom.
        """
        # NaN compares false.
        fresh: BoolArray = (now_s - self.scraped_at_s <= stale_after_s) | (now_s <= self.current_until_s)
        return fresh
