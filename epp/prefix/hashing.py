"""A prompt as a chain of block hashes: equal chains are equal prefixes.

Each hash covers its block and, through the seed, everything before it: h[i] = xxh3_64(block[i], seed=h[i-1]), and h[-1]
is the hash of what must never match across: model and cache salt. So two prompts share h[i] only if they agree from
their very start to the end of block i.

Only full blocks are hashed. Engines cache full blocks only, and a partial tail of one turn of a conversation is never
found again in the next, longer one.
"""

from xxhash import xxh3_64_intdigest


def block_hashes(prompt: bytes, seed: bytes, block_bytes: int, max_blocks: int | None = None) -> list[int]:
    """Hashes of the full blocks of `prompt`, at most `max_blocks` of them (`None`: all)."""
    blocks = len(prompt) // block_bytes
    if max_blocks is not None:
        blocks = min(blocks, max_blocks)
    hashes = []
    previous = xxh3_64_intdigest(seed)
    for start in range(0, blocks * block_bytes, block_bytes):
        previous = xxh3_64_intdigest(prompt[start : start + block_bytes], previous)
        hashes.append(previous)
    return hashes
