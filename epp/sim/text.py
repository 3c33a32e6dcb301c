"""Text without a model: tokens counted by bytes, prompts hashed by block, output that follows from the prompt alone.

Four bytes are one token, so a 16-token block is 64 bytes of prompt, and a prompt given as token ids (little-endian
uint32) is counted and hashed by the very same rule.
"""

from collections.abc import Sequence

import xxhash

BYTES_PER_TOKEN = 4

# Words of one to four UTF-8 bytes per character, so that a reader which cuts characters in half is found out.
_WORDS = (" the", " größe", " of", " 東京", " a", " naïve", " 🙂", " and", " données", " to", " мир", " is", " 🚀🚀")


def count_tokens(prompt: bytes) -> int:
    """Tokens of a prompt: at least 1, the last one may be cut."""
    return max(1, -(-len(prompt) // BYTES_PER_TOKEN))


def token_ids_as_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as prompt bytes. Raises OverflowError or TypeError for what is no uint32."""
    return b"".join(i.to_bytes(BYTES_PER_TOKEN, "little") for i in ids)


def block_hashes(prompt: bytes, block_tokens: int, salt: str) -> tuple[int, ...]:
    """A hash for each full block, covering the block and all before it; prompts of unequal `salt` share none."""
    block_bytes = block_tokens * BYTES_PER_TOKEN
    digest = xxhash.xxh3_64(salt.encode())
    hashes = []
    for start in range(0, len(prompt) - block_bytes + 1, block_bytes):
        digest.update(prompt[start : start + block_bytes])
        hashes.append(digest.intdigest())
    return tuple(hashes)


def output_token(seed: int, index: int) -> str:
    """The `index`-th token of the output that `seed` (a hash of the prompt) leads to."""
    return _WORDS[(seed + index * (index + 1) // 2) % len(_WORDS)]
