"""A prompt as a chain of block hashes: equal chains are equal prefixes.

Each hash covers its block and, through the seed, everything before it: c[i] = xxh3_64(block[i], seed=c[i-1]), and c[-1]
is the hash of what must never match across: model and cache salt. So two prompts share a hash only if they agree from
their very start to the end of its block. What is given out is c[i] without its top bits, see `HASH_BITS`.

Only full blocks are hashed. Engines cache full blocks only, and a partial tail of one turn of a conversation is never
found again in the next, longer one.
"""

from struct import iter_unpack

from xxhash import xxh3_64_intdigest

HASH_BITS = 60
"""An integer of up to 60 bits takes 32 bytes in CPython and one of 64 takes 48, in each entry of the index. Among a
million blocks two are the same by chance once in 2,300,000 such indexes."""

_KEPT_BITS = (1 << HASH_BITS) - 1


def block_hashes(prompt: bytes, seed: bytes, block_bytes: int, max_blocks: int | None = None) -> list[int]:
    """Hashes of the full blocks of `prompt`, at most `max_blocks` of them (`None`: all)."""
    blocks = len(prompt) // block_bytes
    if max_blocks is not None:
        blocks = min(blocks, max_blocks)
    hashes: list[int] = []
    if not blocks:
        return hashes
    chained = xxh3_64_intdigest(seed)
    # Cut into blocks by `struct`, in C: of a prompt of 1,600 blocks that saves a third of the time.
    for (block,) in iter_unpack(f"{block_bytes}s", memoryview(prompt)[: blocks * block_bytes]):
        chained = xxh3_64_intdigest(block, chained)
        hashes.append(chained & _KEPT_BITS)
    return hashes
