"""The pool as it is now: who lives in it, and what is last known of each.

Discovery writes whole sets of endpoints, the scraper writes signals, requests read snapshots. All of them run on one
event loop, so there is one writer at a time and no lock. Discovery always states the whole set: whatever it missed
in between (a lost delete, an add that overtook its delete) is healed by the next statement.

What scrapers write goes into one table, in place; a snapshot is a copy of it, made when somebody asks for one and the
table has changed. So a decision in a pool of a thousand servers does not pay for a thousand readings.

What is known of an endpoint belongs to the server behind its address. It is forgotten when the endpoint leaves and when
its address changes; a server that comes back starts unknown.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import (
    COLUMNS,
    UNKNOWN_SIGNALS,
    EndpointSignals,
    EngineCache,
    FloatArray,
    Roster,
    Snapshot,
    cache_of,
    caches_of,
    column_values,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointChanges:
    """The difference between two sets of endpoints.

    Attributes:
        changed: (before, after) of endpoints that kept their id and changed in any other way.
    """

    added: tuple[Endpoint, ...] = ()
    removed: tuple[Endpoint, ...] = ()
    changed: tuple[tuple[Endpoint, Endpoint], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


Subscriber = Callable[[EndpointChanges], None]


class PoolStore:
    """See the module's text. Every method is synchronous and is called from one thread."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}  # by id, in order of id
        self._roster = Roster(())
        self._signals: list[EndpointSignals] = []  # in the order of the roster
        self._table: FloatArray = np.empty((0, COLUMNS))  # their numbers, a row for each endpoint
        self._endpoints_version = 0
        self._caches: tuple[EngineCache, ...] | None = ()  # `None`: to be made again
        self._snapshot = Snapshot.build(())
        self._stale = False
        self._subscribers: list[Subscriber] = []
        self._reported_duplicates: set[str] = set()

    def replace(self, endpoints: Iterable[Endpoint]) -> EndpointChanges:
        """Make `endpoints` the whole pool, tell subscribers what that changed, and return it.

        Of two endpoints with one id the later stands. Of two with one address the first stands, since a request could
        not tell them apart; both cases are logged once for as long as they last.
        """
        before, after = self._endpoints, self._distinct(endpoints)
        changes = EndpointChanges(
            added=tuple(e for key, e in after.items() if key not in before),
            removed=tuple(e for key, e in before.items() if key not in after),
            changed=tuple((old, after[key]) for key, old in before.items() if key in after and after[key] != old),
        )
        if not changes:
            return changes
        known = dict(zip(before, self._signals, strict=True))
        moved = [old for old, new in changes.changed if _place(old) != _place(new)]
        for gone in (*changes.removed, *moved):
            del known[gone.id]
        self._endpoints = after
        self._roster = Roster(tuple(after.values()))
        self._signals = [known.get(key, UNKNOWN_SIGNALS) for key in after]
        self._table = np.array([column_values(s) for s in self._signals], dtype=np.float64).reshape(-1, COLUMNS)
        self._caches = None
        self._endpoints_version += 1
        self._stale = True
        for subscriber in tuple(self._subscribers):
            subscriber(changes)
        return changes

    def update_signals(self, endpoint_id: str, signals: EndpointSignals) -> None:
        """Keep `signals` as the latest word of this endpoint. Of an endpoint that has left they are ignored."""
        row = self._roster.row_by_id.get(endpoint_id)
        if row is None:
            return
        before, self._signals[row] = self._signals[row], signals
        self._table[row] = column_values(signals)
        self._stale = True
        if cache_of(before) != cache_of(signals):
            self._caches = None

    def snapshot(self) -> Snapshot:
        """The pool at this instant, endpoints in order of id; the very same object until something changes."""
        if self._stale:
            if self._caches is None:
                self._caches = caches_of(self._signals)
            columns = self._table.T.copy()
            columns.flags.writeable = False
            self._snapshot = Snapshot(
                version=self._snapshot.version + 1,
                endpoints_version=self._endpoints_version,
                roster=self._roster,
                caches=self._caches,
                signals=tuple(self._signals),
                columns=columns,
            )
            self._stale = False
        return self._snapshot

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` on every change from now on, and at once with the endpoints there are as added.

        Subscribers are called in order, after the change is visible in `snapshot()`; they must not raise, nor change
        the endpoints. Returns a function that ends the subscription.
        """
        self._subscribers.append(subscriber)
        if self._endpoints:
            subscriber(EndpointChanges(added=tuple(self._endpoints.values())))
        return lambda: self._subscribers.remove(subscriber)

    def _distinct(self, endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
        duplicates: set[str] = set()
        by_id: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            if endpoint.id in by_id:
                duplicates.add(f"endpoint {endpoint.id} is there twice; the later one counts")
            by_id[endpoint.id] = endpoint
        by_address: dict[str, Endpoint] = {}
        for endpoint in by_id.values():
            first = by_address.setdefault(endpoint.address, endpoint)
            if first is not endpoint:
                duplicates.add(f"endpoints {first.id} and {endpoint.id} are both {first.address}; the former counts")
        for text in sorted(duplicates - self._reported_duplicates):
            logger.warning("%s", text)
        self._reported_duplicates = duplicates
        return {e.id: e for e in sorted(by_address.values(), key=lambda e: e.id)}


def _place(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.address, endpoint.metrics_address
