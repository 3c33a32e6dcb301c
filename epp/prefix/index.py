"""Which endpoint has probably cached which prompt prefix: an index of what we ourselves sent where.

One table from block hash to a bit mask, one bit (slot) per endpoint. Each endpoint also has its blocks in the order of
their last use, to forget the oldest when its capacity is reached. Blocks are entered from the end of a prompt to its
head: the head is always the youngest, so a prefix loses its tail first and never becomes unreachable from its start.

Hence, along a chain, the set of endpoints that hold a block only shrinks, and a lookup need not walk the chain: where
the endpoints at two places are the same they are the same in between, and where they differ the place is found by
halving. A chain of a thousand blocks is looked up in a dozen steps for each length at which somebody drops out.

Memory is bounded twice: per endpoint by what its own cache could hold, and in all by `max_bytes`; beyond that the
endpoint with the most blocks gives up its oldest. It is kept small by sharing: a hash is one object in both tables, and
so is a mask in all blocks of a chain that the same endpoints hold.

A long prompt that is new takes the place of as many old blocks. Both go through the tables' methods by `map`, in C.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, repeat

import numpy as np
import numpy.typing as npt

from epp.pool.snapshot import FloatArray, Snapshot

ENTRY_BYTES = 156
"""Memory of a block on one endpoint when no other endpoint has it: hash, and an entry in two tables.

Measured on CPython 3.11: 96 when both tables are just full, 156 when both have just grown; 108 in an index of a million
over 100 endpoints (`benchmarks.memory`). On each further endpoint it is 62 to 92 more. A mask of several endpoints
takes 4 bytes for every 30 slots, at most once per block."""


_REMEMBERED_MASKS = 256

_MANY_BLOCKS = 256
"""From here on several passes in C take less time than one in Python."""


class _Slot:
    """One endpoint: its bit, and its blocks.

    Attributes:
        blocks: oldest use first. The value is the key itself: the object that the other table has, too.
        leaving: the oldest of `blocks`, taken out of it some at a time, the very oldest last. To find the first entry
            of a table that has lost its first ones means to pass over all their places; the last one is found at once.
    """

    __slots__ = ("bit", "blocks", "endpoint_id", "leaving")

    def __init__(self, endpoint_id: str, number: int) -> None:
        self.endpoint_id = endpoint_id
        self.bit = 1 << number
        self.blocks: dict[int, int] = {}
        self.leaving: dict[int, int] = {}

    @property
    def share_to_leave(self) -> int:
        """Blocks that are worth a pass from the start of the table."""
        return len(self.blocks) // 64 + 16

    def next_to_leave(self) -> dict[int, int]:
        """`leaving`, with something in it if there is anything at all."""
        if not self.leaving:
            oldest = list(islice(self.blocks, self.share_to_leave))
            self.leaving = dict.fromkeys(reversed(oldest), 0)
        return self.leaving


class PrefixIndex:
    """See the module's text. For use from one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holders: dict[int, int] = {}
        self._slots: list[_Slot | None] = []
        self._by_id: dict[str, _Slot] = {}
        self._blocks = 0
        # Row of each slot in the snapshots of one version; endpoints outside it get the row after the last. And what
        # masks came to with them: who shares a system prompt is asked for with every request.
        self._row_of_slot: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._rows_of_mask: dict[int, int | npt.NDArray[np.intp]] = {}
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

    def blocks_of(self, endpoint_id: str) -> list[int]:
        """Its blocks, the one used last first: in this order they can be inserted elsewhere."""
        slot = self._by_id.get(endpoint_id)
        return [] if slot is None else list(reversed(slot.blocks))

    def match(self, hashes: Sequence[int], snapshot: Snapshot) -> FloatArray:
        """Blocks of the chain that each endpoint holds, from its start on, in the order of `snapshot`."""
        matched = np.zeros(len(snapshot) + 1)
        get = self._holders.get
        holding = get(hashes[0], 0) if hashes else 0
        if holding:
            self._follow(snapshot)
            last = len(hashes) - 1
            at_end = get(hashes[last], 0)
            at = 0  # all of `holding` hold this block
            while at < last and holding & at_end != holding:
                beyond = last  # and not all of them this one
                while beyond - at > 1:
                    middle = (at + beyond) // 2
                    if holding & get(hashes[middle], 0) == holding:
                        at = middle
                    else:
                        beyond = middle
                still = holding & get(hashes[beyond], 0)
                matched[self._rows(holding ^ still)] = beyond
                at, holding = beyond, still
                if not holding:
                    return matched[:-1]
            matched[self._rows(holding)] = len(hashes)
        return matched[:-1]

    def insert(self, endpoint_id: str, hashes: Sequence[int], capacity_blocks: int) -> None:
        """The endpoint will have this chain cached. It is remembered with at most `capacity_blocks` blocks in all."""
        slot = self._by_id.get(endpoint_id) or self._new_slot(endpoint_id)
        blocks, leaving, holders, bit = slot.blocks, slot.leaving, self._holders, slot.bit
        before = len(blocks)
        if len(hashes) >= _MANY_BLOCKS and hashes[0] not in blocks and self._enter_many(slot, hashes[:capacity_blocks]):
            hashes = ()
        seen = joined = 0  # a mask of this chain, and the same with our bit: computed once, shared by all its blocks
        for block in reversed(hashes[:capacity_blocks]):
            known = blocks.pop(block, None)
            if known is not None:  # to the end of the order
                blocks[known] = known
                if leaving:
                    leaving.pop(known, None)
                continue
            blocks[block] = block
            mask = holders.setdefault(block, bit)
            if mask is not bit:  # somebody else has it, too
                if mask is not seen:
                    seen, joined = mask, mask | bit
                holders[block] = joined
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

    def _follow(self, snapshot: Snapshot) -> None:
        if snapshot.endpoints_version != self._rows_version:
            outside, row_by_id = len(snapshot), snapshot.row_by_id
            rows = [outside if slot is None else row_by_id.get(slot.endpoint_id, outside) for slot in self._slots]
            self._row_of_slot = np.array(rows, dtype=np.intp)
            self._rows_of_mask.clear()
            self._rows_version = snapshot.endpoints_version

    def _rows(self, mask: int) -> int | npt.NDArray[np.intp]:
        """Rows of the snapshot last followed: an array for many, for a single one just its number."""
        rows = self._rows_of_mask.get(mask)
        if rows is None:
            if len(self._rows_of_mask) >= _REMEMBERED_MASKS:
                self._rows_of_mask.clear()
            slots = _slots_in(mask)
            rows = int(self._row_of_slot[slots]) if isinstance(slots, int) else self._row_of_slot[slots]
            self._rows_of_mask[mask] = rows
        return rows

    def _enter_many(self, slot: _Slot, chain: Sequence[int]) -> bool:
        """Enter a chain in bulk. False if the endpoint had some of it: those blocks are not in their order yet."""
        blocks, holders, bit = slot.blocks, self._holders, slot.bit
        before, known = len(blocks), len(holders)
        new = list(reversed(chain))
        _exhaust(map(blocks.setdefault, new, new))
        masks = list(map(holders.setdefault, new, repeat(bit)))
        if len(holders) - known < len(new):
            for mask, start, stop in _runs(masks):
                if not mask & bit:  # somebody else has them, too
                    holders.update(dict.fromkeys(new[start:stop], mask | bit))
        return len(blocks) - before == len(new)

    def _drop_many(self, slot: _Slot, count: int) -> None:
        blocks, holders, bit = slot.blocks, self._holders, slot.bit
        oldest = list(islice(blocks, count))
        slot.leaving = {}  # all of it is among them
        _exhaust(map(blocks.pop, oldest))
        masks = list(map(holders.pop, oldest))
        if masks.count(bit) < len(masks):
            for mask, start, stop in _runs(masks):
                if mask != bit:  # somebody else keeps them
                    holders.update(dict.fromkeys(oldest[start:stop], self._shared(mask ^ bit)))

    def _drop_oldest(self, slot: _Slot, count: int) -> None:
        blocks, bit, holders = slot.blocks, slot.bit, self._holders
        count = left_over = max(min(count, len(blocks)), 0)
        if count >= max(_MANY_BLOCKS, slot.share_to_leave):  # worth a pass over the places of those that left before
            self._drop_many(slot, count)
            left_over = 0
        seen = left = 0  # as in `insert`
        while left_over:
            leaving = slot.next_to_leave()
            now = min(left_over, len(leaving))
            for _ in range(now):
                block, _unused = leaving.popitem()
                del blocks[block]
                mask = holders.pop(block)
                if mask is not bit:  # somebody else keeps it
                    if mask is not seen:
                        seen, left = mask, self._shared(mask ^ bit)
                    holders[block] = left
            left_over -= now
        self._blocks -= count

    def _shared(self, mask: int) -> int:
        """An equal mask; of one endpoint, the one that all its blocks share."""
        slot = self._slots[mask.bit_length() - 1] if mask & (mask - 1) == 0 else None
        return mask if slot is None else slot.bit


def _exhaust(calls: Iterator[object]) -> None:
    """Make all the calls of a `map`, in C."""
    deque(calls, maxlen=0)


def _runs(masks: list[int]) -> Iterator[tuple[int, int, int]]:
    """Each mask with the start and stop of its run."""
    stop = 0
    for mask, run in groupby(masks):
        start, stop = stop, stop + len(list(run))
        yield mask, start, stop


def _slots_in(mask: int) -> int | npt.NDArray[np.intp]:
    """Numbers of the slots whose bits are set: an array for many, for the common one just its number."""
    if mask & (mask - 1) == 0:
        return mask.bit_length() - 1
    octets = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
    return np.flatnonzero(np.unpackbits(np.frombuffer(octets, dtype=np.uint8), bitorder="little"))
