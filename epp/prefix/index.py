"""Which endpoint has probably cached which prompt prefix: an index of what we ourselves sent where.

One table from block hash to a bit mask, one bit (slot) per endpoint. A lookup walks the request's chain once and keeps
the endpoints that held every block so far, so a match is contiguous from the start, as it is in an engine's cache, and
its cost does not grow with the pool. Each endpoint also has its blocks in the order of their last use, to forget the
oldest when its capacity is reached. Blocks are entered from the end of a prompt to its head: the head is always the
youngest, so a prefix loses its tail first and never becomes unreachable from its start.

Memory is bounded twice: per endpoint by what its own cache could hold, and in all by `max_bytes`; beyond that the
endpoint with the most blocks gives up its oldest.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from epp.pool.snapshot import FloatArray, Snapshot

ENTRY_BYTES = 240
"""Memory of a block on one endpoint when no other endpoint has it: hash, table entry, mask, place in the order of use.

Measured on CPython 3.11: 160 when the tables are just full, 240 when they have just grown. A mask takes 4 more bytes
for every 30 slots."""


class _Slot:
    """One endpoint: its bit, and its blocks, oldest use first."""

    __slots__ = ("bit", "blocks", "endpoint_id")

    def __init__(self, endpoint_id: str, number: int) -> None:
        self.endpoint_id = endpoint_id
        self.bit = 1 << number
        self.blocks: OrderedDict[int, None] = OrderedDict()


class PrefixIndex:
    """See the module's text. For use from one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holders: dict[int, int] = {}
        self._slots: list[_Slot | None] = []
        self._by_id: dict[str, _Slot] = {}
        self._blocks = 0
        # Row of each slot in the snapshots of one version; endpoints outside it get the row after the last.
        self._row_of_slot: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._rows_version: int | None = None

    def __len__(self) -> int:
        """Blocks over all endpoints; one that two endpoints have counts twice."""
        return self._blocks

    @property
    def size_bytes(self) -> int:
        """Memory held, by the documented cost of a block."""
        return self._blocks * self._entry_bytes

    def blocks_by_endpoint(self) -> Mapping[str, int]:
        return {slot.endpoint_id: len(slot.blocks) for slot in self._by_id.values()}

    def match(self, hashes: Sequence[int], snapshot: Snapshot) -> FloatArray:
        """Blocks of the chain that each endpoint holds without a gap from the start, in the order of `snapshot`."""
        matched = np.zeros(len(snapshot) + 1)
        rows = self._rows(snapshot)
        holding = self._holders.get(hashes[0], 0) if hashes else 0
        for count, block in enumerate(hashes):
            still = holding & self._holders.get(block, 0)
            if still != holding:
                matched[rows[_slots_in(holding ^ still)]] = count
                holding = still
            if not holding:
                break
        if holding:
            matched[rows[_slots_in(holding)]] = len(hashes)
        return matched[:-1]

    def insert(self, endpoint_id: str, hashes: Sequence[int], capacity_blocks: int) -> None:
        """The endpoint will have this chain cached. It is remembered with at most `capacity_blocks` blocks in all."""
        slot = self._by_id.get(endpoint_id) or self._new_slot(endpoint_id)
        blocks, holders, bit = slot.blocks, self._holders, slot.bit
        before = len(blocks)
        for block in reversed(hashes[:capacity_blocks]):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
                holders[block] = holders.get(block, 0) | bit
        self._blocks += len(blocks) - before
        self._drop_oldest(slot, len(blocks) - capacity_blocks)
        while (excess := self._blocks - self._max_bytes // self._entry_bytes) > 0:
            self._drop_oldest(max(self._by_id.values(), key=lambda s: len(s.blocks)), excess)

    def blocks_of(self, endpoint_id: str) -> list[int]:
        """Its blocks, the one used last first: in this order they can be inserted elsewhere."""
        slot = self._by_id.get(endpoint_id)
        return [] if slot is None else list(reversed(slot.blocks))

    def forget(self, endpoint_id: str) -> None:
        """The endpoint is gone, or came back empty: nothing is cached there. O(its blocks)."""
        slot = self._by_id.pop(endpoint_id, None)
        if slot is not None:
            self._drop_oldest(slot, len(slot.blocks))
            self._slots[slot.bit.bit_length() - 1] = None
            self._rows_version = None

    @property
    def _entry_bytes(self) -> int:
        return ENTRY_BYTES + 4 * (len(self._slots) // 30)

    def _new_slot(self, endpoint_id: str) -> _Slot:
        """The first free number. It is free only when no mask has its bit any more, see `forget`."""
        try:
            number = self._slots.index(None)
        except ValueError:
            number = len(self._slots)
            self._slots.append(None)
        slot = self._slots[number] = self._by_id[endpoint_id] = _Slot(endpoint_id, number)
        self._rows_version = None
        return slot

    def _rows(self, snapshot: Snapshot) -> npt.NDArray[np.intp]:
        if snapshot.endpoints_version != self._rows_version:
            outside, row_by_id = len(snapshot), snapshot.row_by_id
            rows = [outside if slot is None else row_by_id.get(slot.endpoint_id, outside) for slot in self._slots]
            self._row_of_slot = np.array(rows, dtype=np.intp)
            self._rows_version = snapshot.endpoints_version
        return self._row_of_slot

    def _drop_oldest(self, slot: _Slot, count: int) -> None:
        holders, bit = self._holders, slot.bit
        for _ in range(min(count, len(slot.blocks))):
            block, _unused = slot.blocks.popitem(last=False)
            left = holders[block] ^ bit
            if left:
                holders[block] = left
            else:
                del holders[block]
            self._blocks -= 1


def _slots_in(mask: int) -> int | npt.NDArray[np.intp]:
    """Numbers of the slots whose bits are set: an array for many, for the common one just its number."""
    if mask & (mask - 1) == 0:
        return mask.bit_length() - 1
    octets = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
    return np.flatnonzero(np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little"))
