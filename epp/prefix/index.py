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
        matched = np.zeros(len(snapshot))
        holding = self._holders.get(hashes[0], 0) if hashes else 0
        if not holding:
            return matched
        for count, block in enumerate(hashes):
            still = holding & self._holders.get(block, 0)
            if still != holding:
                self._record(matched, holding ^ still, count, snapshot)
                holding = still
                if not holding:
                    return matched
        self._record(matched, holding, len(hashes), snapshot)
        return matched

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

    def forget(self, endpoint_id: str) -> None:
        """The endpoint is gone, or came back empty: nothing is cached there. O(its blocks)."""
        slot = self._by_id.pop(endpoint_id, None)
        if slot is not None:
            self._drop_oldest(slot, len(slot.blocks))
            self._slots[slot.bit.bit_length() - 1] = None

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
        return slot

    def _record(self, matched: FloatArray, mask: int, count: int, snapshot: Snapshot) -> None:
        while mask:
            bit = mask & -mask
            slot = self._slots[bit.bit_length() - 1]
            row = snapshot.row_by_id.get(slot.endpoint_id) if slot is not None else None
            if row is not None:
                matched[row] = count
            mask ^= bit

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
