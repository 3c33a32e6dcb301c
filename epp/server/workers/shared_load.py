"""What each worker has in flight, in memory that all of them see.

One plane for each worker, which alone writes there: four numbers for each endpoint, as in `epp.ledger.Load`, absolute
and never negative. Readers add up the planes. So nothing has to be merged, no update can be lost, and when a worker
dies the parent wipes its plane and nothing of it is left. A number is one aligned word: a reader sees the old or the
new one, and nothing between.

An endpoint has the same slot in all planes. The parent gives slots out, and tells them with the pool. When an endpoint
leaves, its slot goes to the end of the queue: until all workers have heard of it, one of them may still write there
what belongs to the one that left, and puts that right when it hears.
"""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from epp.ledger import InFlight
from epp.pool.snapshot import FloatArray, Snapshot

SLOTS = 16_384
FIELDS = 4
_NUMBER = np.dtype(np.float64)


def create(workers: int) -> int:
    """A file descriptor of memory for so many planes, all zero. It has no name, and is gone with its last user."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("epp-load")
    else:  # not on Linux
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, workers * FIELDS * SLOTS * _NUMBER.itemsize)
    return descriptor


class SharedLoad:
    """The `Peers` of one process's ledger.

    Args:
        descriptor: of `create`; may be closed afterwards.
        me: our own plane; `None`: we only read.
    """

    def __init__(self, descriptor: int, workers: int, me: int | None) -> None:
        memory = mmap.mmap(descriptor, workers * FIELDS * SLOTS * _NUMBER.itemsize)
        planes: FloatArray = np.frombuffer(memory, dtype=_NUMBER).reshape(workers, FIELDS, SLOTS)
        self._planes = planes
        self._mine = None if me is None else memoryview(memory).cast("d")[me * FIELDS * SLOTS :]
        self._peers = [number for number in range(workers) if number != me]
        self._me = me
        self._slots: Mapping[str, int] = {}
        self._endpoints_version: int | None = None
        self._rows: npt.NDArray[np.intp] | None = None
        self._in_order: FloatArray = planes[:, :, :0]
        self._ours_alone: npt.NDArray[np.intp] | None = None

    def assign(self, slots: Mapping[str, int]) -> None:
        """From now on endpoints have these slots. Our plane is empty after this: publish everything anew."""
        self._slots = slots
        self._endpoints_version = None
        if self._me is not None:
            self.wipe(self._me)

    def wipe(self, worker: int) -> None:
        """Nothing of this worker's is in flight any more."""
        self._planes[worker] = 0.0

    def publish(self, endpoint_id: str, load: tuple[int, int, int, int]) -> None:
        slot = self._slots.get(endpoint_id)
        if slot is not None and (mine := self._mine) is not None:
            mine[slot], mine[slot + SLOTS], mine[slot + 2 * SLOTS], mine[slot + 3 * SLOTS] = load

    def load(self, snapshot: Snapshot, ours: FloatArray) -> FloatArray:
        if snapshot.endpoints_version != self._endpoints_version:
            self._look_up(snapshot)
        # Our own plane says what `ours` does, so all are added up at once, whatever their number.
        planes = self._in_order if self._rows is None else self._planes[:, :, self._rows]
        total: FloatArray = np.add.reduce(planes, axis=0)
        if self._ours_alone is not None:
            total[:, self._ours_alone] = ours[:, self._ours_alone]
        return total

    def in_flight(self, endpoint_id: str) -> InFlight:
        slot = self._slots.get(endpoint_id)
        if slot is None:
            return InFlight(0, 0)
        requests, tokens, *_ = self._planes[self._peers, :, slot].sum(axis=0).tolist()
        return InFlight(int(requests), int(tokens))

    def _look_up(self, snapshot: Snapshot) -> None:
        """Where the snapshot's endpoints are: as a rule side by side and in its order, and then nothing is copied."""
        self._endpoints_version = snapshot.endpoints_version
        slots = [self._slots.get(endpoint.id) for endpoint in snapshot.endpoints]
        rows = np.array([slot or 0 for slot in slots], dtype=np.intp)
        without = np.array([row for row, slot in enumerate(slots) if slot is None], dtype=np.intp)
        self._ours_alone = without if without.size else None
        first = slots[0] if slots else None
        if first is not None and slots == list(range(first, first + len(slots))):
            self._rows, self._in_order = None, self._planes[:, :, first : first + len(slots)]
        else:
            self._rows = rows


class Slots:
    """Which endpoint has which slot; the parent's."""

    def __init__(self) -> None:
        self._free = deque(range(SLOTS))
        self._by_id: dict[str, int] = {}

    def of(self, endpoint_ids: Iterable[str]) -> dict[str, int]:
        """For exactly these endpoints, as far as there are slots; who had one keeps it."""
        wanted = list(endpoint_ids)
        gone = self._by_id.keys() - set(wanted)
        self._free.extend(self._by_id.pop(endpoint_id) for endpoint_id in sorted(gone))
        for endpoint_id in wanted:
            if endpoint_id not in self._by_id and self._free:
                self._by_id[endpoint_id] = self._free.popleft()
        return dict(self._by_id)
