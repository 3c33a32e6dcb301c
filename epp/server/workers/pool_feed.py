"""The pool in every process: the parent's store is the one that discovery and scrapers write; workers have copies.

Times are of the machine's monotonic clock, so a signal is as old in a worker as it is in the parent. Endpoint versions
are each process's own.
"""

from dataclasses import replace

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.pool.store import PoolStore
from epp.server.workers.messages import PoolChange
from epp.server.workers.shared_load import SharedLoad, Slots


class PoolFeed:
    """The parent's side: what has changed since it was last asked.

    Args:
        load: the parent's view of what is in flight, which follows the slots.
    """

    def __init__(self, store: PoolStore, load: SharedLoad) -> None:
        self._store = store
        self._load = load
        self._slots = Slots()
        self._told: Snapshot | None = None

    def change(self) -> PoolChange | None:
        """For all who have heard every earlier one; `None`: nothing has changed."""
        snapshot, told = self._store.snapshot(), self._told
        if told is not None and snapshot.version == told.version:
            return None
        self._told = snapshot
        known = {} if told is None else dict(zip(told.row_by_id, told.signals, strict=True))
        signals = {
            endpoint_id: signals
            for endpoint_id, signals in zip(snapshot.row_by_id, snapshot.signals, strict=True)
            if known.get(endpoint_id) is not signals
        }
        if told is not None and snapshot.endpoints_version == told.endpoints_version:
            return PoolChange(None, {}, signals)
        slots = self._slots.of(snapshot.row_by_id)
        self._load.assign(slots)
        return PoolChange(_portable(snapshot), slots, signals)

    def whole(self) -> PoolChange:
        """For a newcomer, who may then be told every later change; call `change` first, and tell it to the others."""
        snapshot = self._told or self._store.snapshot()
        slots = self._slots.of(snapshot.row_by_id)
        return PoolChange(_portable(snapshot), slots, dict(zip(snapshot.row_by_id, snapshot.signals, strict=True)))


def _portable(snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """Labels may be a view, which another process could not have."""
    return tuple(replace(endpoint, labels=dict(endpoint.labels)) for endpoint in snapshot.endpoints)


def follow(change: PoolChange, store: PoolStore) -> None:
    """The worker's side."""
    if change.endpoints is not None:
        store.replace(change.endpoints)
    for endpoint_id, signals in change.signals.items():
        store.update_signals(endpoint_id, signals)
