"""Equal chains of hashes mean equal prefixes, and nothing else does."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.prefix.hashing import block_hashes


def common_blocks(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60), st.integers(1, 9))
def test_chains_agree_exactly_as_far_as_full_blocks_of_the_prompts_agree(head, tail_a, tail_b, block_bytes):
    a, b = head + tail_a, head + tail_b
    same_bytes = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    chains = block_hashes(a, b"m", block_bytes), block_hashes(b, b"m", block_bytes)
    assert common_blocks(*chains) == same_bytes // block_bytes


def test_another_model_adapter_or_salt_shares_nothing():
    prompt = b"x" * 1024
    seeds = [b"llama\0", b"llama-lora\0", b"llama\0tenant-a", b"llama\0tenant-b", b""]
    chains = [block_hashes(prompt, seed, 256) for seed in seeds]
    assert len({block for chain in chains for block in chain}) == 4 * len(seeds)
    assert block_hashes(prompt, b"llama\0tenant-a", 256) == chains[2]


def test_the_partial_tail_is_not_hashed():
    assert block_hashes(b"a" * 255, b"", 256) == []
    assert block_hashes(b"a" * 300, b"", 256) == block_hashes(b"a" * 256 + b"b" * 200, b"", 256)


def test_the_same_block_at_another_place_is_another_hash():
    first, second = block_hashes(b"a" * 512, b"", 256)
    assert first != second


def test_the_chain_is_capped():
    whole = block_hashes(b"a" * 2560, b"", 256)
    assert len(whole) == 10
    assert block_hashes(b"a" * 2560, b"", 256, max_blocks=3) == whole[:3]
    assert block_hashes(b"a" * 2560, b"", 256, max_blocks=0) == []
