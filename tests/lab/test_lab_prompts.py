"""Prompts as segments: the picker's hashes of the bytes and the engines' of the numbers find the same prefixes."""

import random

import pytest

from epp.lab.prompts import BlockHashes, Prompt, SegmentNumbers, text_of, tokens_of
from epp.prefix.hashing import block_hashes


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_both_find_the_same_blocks_shared(block_tokens: int) -> None:
    rng = random.Random(1)
    numbers = SegmentNumbers()
    segments = [numbers.new(rng.randint(1, 150)) for _ in range(6)]
    prompts: list[Prompt] = [tuple(rng.choices(segments, k=rng.randint(1, 6))) for _ in range(60)]
    hashes = BlockHashes()
    by_number = [hashes.of(prompt, block_tokens) for prompt in prompts]
    by_bytes = [block_hashes(text_of(prompt), b"", 4 * block_tokens) for prompt in prompts]
    for prompt, blocks in zip(prompts, by_number, strict=True):
        assert len(blocks) == tokens_of(prompt) // block_tokens
    for i, prompt in enumerate(prompts):
        for j in range(i):
            shared = common(by_bytes[i], by_bytes[j])
            # Rows of segments that begin alike are equal as bytes; where they part, so do both kinds of hashes.
            assert common(by_number[i], by_number[j]) <= shared
            alike = tokens_of(prompt[: common(prompt, prompts[j])]) // block_tokens
            assert common(by_number[i], by_number[j]) == alike
            assert shared - alike <= 1  # two segments of the same text may agree on a few tokens more


def test_four_bytes_are_a_token_and_other_numbers_other_text() -> None:
    numbers = SegmentNumbers()
    one, other = numbers.new(100), numbers.new(101)
    assert len(text_of((one, other))) == 4 * 201
    assert text_of((one,)) == text_of((one, other))[:400]
    assert text_of((one,))[:8] != text_of((other,))[:8]
