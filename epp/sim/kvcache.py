"""The KV cache of an engine: fixed-size blocks, shared by prefix, recycled least recently used first.

A block is held by any number of sequences (its reference count) or is free. A free block keeps its content until it is
handed out again: the free list is the cache. It is ordered by the time of release, and a sequence releases its last
block first, so that the tail of a prefix is forgotten before its head. (vLLM's block pool works the same way.)
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat

_LOOKED_UP_AT_ONCE = 128  # hashes: by `map`, in C
_NOT_CACHED = -1


class KvCache:
    """`blocks` blocks, each either held (reference count > 0) or on the free list.

    A block hash stands for the block's tokens *and all tokens before it*, so equal hashes mean equal prefixes.

    Attributes:
        published: how many blocks were ever made findable; while it stands still no match can have grown.
    """

    def __init__(self, blocks: int) -> None:
        self.total_blocks = blocks
        self.published = 0
        self._references = [0] * blocks
        self._hash_of: list[int | None] = [None] * blocks
        self._block_of: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(blocks))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return sum(1 for count in self._references if count)

    @property
    def usage_ratio(self) -> float:
        """0..1; cached blocks that nobody holds count as free, as vLLM's `kv_cache_usage_perc` has it."""
        return 1.0 - len(self._free) / self.total_blocks

    def match(self, hashes: Sequence[int]) -> list[int]:
        """The blocks that hold the longest cached prefix of `hashes`. Changes nothing."""
        found: list[int] = []
        for start in range(0, len(hashes), _LOOKED_UP_AT_ONCE):
            found += map(self._block_of.get, hashes[start : start + _LOOKED_UP_AT_ONCE], repeat(_NOT_CACHED))
            if found[-1] == _NOT_CACHED or _NOT_CACHED in found[start:]:
                return found[: found.index(_NOT_CACHED, start)]
        return found

    def hold(self, matched: Sequence[int], fresh: int) -> list[int] | None:
        """Hold the `matched` blocks and `fresh` new ones; `None`, and nothing changed, when too few are free."""
        references, free = self._references, self._free
        revived = [block for block in matched if not references[block]] if matched else ()
        if fresh > len(free) - len(revived):
            return None
        for block in revived:
            del free[block]
        for block in matched:
            references[block] += 1
        blocks = list(matched)
        hash_of, block_of, take_oldest = self._hash_of, self._block_of, free.popitem
        for _ in range(fresh):
            block = take_oldest(False)[0]
            if (forgotten := hash_of[block]) is not None:
                del block_of[forgotten]
                hash_of[block] = None
            references[block] = 1
            blocks.append(block)
        return blocks

    def publish(self, blocks: Sequence[int], hashes: Sequence[int]) -> None:
        """Make held blocks findable by their hashes; of two blocks with equal content the first stays the known one."""
        block_of, hash_of = self._block_of, self._hash_of
        self.published += len(blocks)
        for block, block_hash in zip(blocks, hashes, strict=True):
            if block_hash not in block_of:
                block_of[block_hash] = block
                hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks, given in the order of its tokens."""
        references, free = self._references, self._free
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None
