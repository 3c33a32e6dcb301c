"""Prompts without prose: a prompt is a row of segments, and equal segments are equal text.

A segment has a number and a length in tokens. What two prompts share is then a matter of numbers: a system prompt is a
segment that many prompts begin with, a conversation is the segments of the last turn and new ones. The picker gets
real bytes, four to a token, and hashes them as it does in production; a simulated server gets the hashes of its own
blocks, which are worked out from the numbers alone. That both find the same prefixes is tested.
"""

from typing import NamedTuple

from xxhash import xxh3_64_digest

from epp.sim.text import BYTES_PER_TOKEN

_INDEX_BITS = 24  # of a block's hash: its place in the prompt; the rest says what is before its end
_PATTERN_TOKENS = 2  # of the eight bytes that a segment repeats


class Segment(NamedTuple):
    """`tokens` of text. One `number` always has the same length."""

    number: int
    tokens: int


Prompt = tuple[Segment, ...]


def tokens_of(prompt: Prompt) -> int:
    return sum(segment.tokens for segment in prompt)


def text_of(prompt: Prompt) -> bytes:
    """The prompt as bytes: four to a token, equal for equal segments and different for others."""
    return b"".join(_text(number, tokens) for number, tokens in prompt)


def _text(number: int, tokens: int) -> bytes:
    pattern = xxh3_64_digest(number.to_bytes(8, "little"))
    return (pattern * (tokens // _PATTERN_TOKENS + 1))[: tokens * BYTES_PER_TOKEN]


class BlockHashes:
    """Hashes of the full blocks of prompts, as `SimRequest` has them: each covers all that is before its end."""

    def __init__(self) -> None:
        self._beginnings: dict[tuple[int, int], int] = {}  # number of a row of segments, by its head's and its last one

    def of(self, prompt: Prompt, block_tokens: int) -> tuple[int, ...]:
        hashes: list[int] = []
        beginning = tokens = 0
        for number, length in prompt:
            key = (beginning, number)
            beginning = self._beginnings.setdefault(key, len(self._beginnings) + 1)
            tokens += length
            first = beginning << _INDEX_BITS
            hashes += range(first + len(hashes), first + tokens // block_tokens)
        return tuple(hashes)


class SegmentNumbers:
    """New numbers for segments: one source for a schedule."""

    def __init__(self) -> None:
        self._last = 0

    def new(self, tokens: int) -> Segment:
        """Text that nobody has seen before."""
        self._last += 1
        return Segment(self._last, tokens)
