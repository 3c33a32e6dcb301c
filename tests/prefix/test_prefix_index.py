"""The index credits an endpoint with exactly what it was sent, from the start, and stays within its bounds."""

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.prefix.hashing import HASH_BITS
from epp.prefix.index import ENTRY_BYTES, PrefixIndex

PLENTY = 1 << 30


VERSIONS = itertools.count()


def pool(*names: str) -> Snapshot:
    endpoints = tuple(Endpoint("ns", name, "10.0.0.1", 8000 + i) for i, name in enumerate(names))
    return Snapshot.build(endpoints, endpoints_version=next(VERSIONS))


def test_a_match_is_contiguous_from_the_start():
    index = PrefixIndex(PLENTY)
    index.insert("ns/saw-b", [2], 100)
    index.insert("ns/saw-a", [1], 100)
    index.insert("ns/saw-both", [1, 2], 100)
    assert index.match([1, 2], pool("saw-b", "saw-a", "saw-both")).tolist() == [0, 1, 2]


def test_nobody_matches_nothing():
    index = PrefixIndex(PLENTY)
    assert index.match([], pool("a")).tolist() == [0]
    assert index.match([1], pool("a", "b")).tolist() == [0, 0]
    assert index.match([1], pool()).tolist() == []


def test_a_forgotten_endpoint_that_comes_back_starts_with_nothing():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", [1, 2, 3], 100)
    index.insert("ns/b", [1, 2], 100)
    index.forget("ns/a")
    assert index.match([1, 2, 3], pool("a", "b")).tolist() == [0, 2]
    assert len(index) == 2
    index.insert("ns/new", [9], 100)  # takes over the free slot, and none of its past
    assert index.match([1, 2, 3], pool("a", "b", "new")).tolist() == [0, 2, 0]
    index.forget("ns/never-seen")
    assert index.blocks_by_endpoint() == {"ns/b": 2, "ns/new": 1}


def test_an_endpoint_outside_the_snapshot_is_not_matched():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", [1], 100)
    index.insert("ns/b", [1], 100)
    assert index.match([1], pool("b")).tolist() == [1]


def test_a_prefix_loses_its_tail_before_its_head():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", [1, 2, 3, 4], 6)
    index.insert("ns/a", [11, 12, 13, 14], 6)
    assert index.match([1, 2, 3, 4], pool("a")).tolist() == [2]
    assert index.match([11, 12, 13, 14], pool("a")).tolist() == [4]


def test_use_keeps_a_prefix_young():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", [1, 2], 4)
    index.insert("ns/a", [3, 4], 4)
    index.insert("ns/a", [1, 2], 4)
    index.insert("ns/a", [5, 6], 4)
    assert index.match([1, 2], pool("a")).tolist() == [2]
    assert index.match([3, 4], pool("a")).tolist() == [0]


def test_a_chain_longer_than_the_capacity_keeps_its_head():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", list(range(1, 100)), 10)
    assert index.match(list(range(1, 100)), pool("a")).tolist() == [10]
    assert len(index) == 10


def test_a_smaller_capacity_shrinks_the_endpoint_at_its_next_use():
    index = PrefixIndex(PLENTY)
    index.insert("ns/a", list(range(1, 100)), 100)
    index.insert("ns/a", [1], 5)
    assert len(index) == 5


def test_the_global_bound_takes_from_the_endpoint_that_has_most():
    index = PrefixIndex(10 * ENTRY_BYTES)
    index.insert("ns/big", list(range(1, 9)), 100)
    index.insert("ns/small", [101, 102], 100)
    index.insert("ns/new", [201, 202], 100)
    assert index.blocks_by_endpoint() == {"ns/big": 6, "ns/small": 2, "ns/new": 2}
    assert index.size_bytes <= 10 * ENTRY_BYTES


def test_a_bound_too_small_for_one_block_keeps_nothing():
    index = PrefixIndex(ENTRY_BYTES - 1)
    index.insert("ns/a", [1, 2, 3], 100)
    assert len(index) == 0


def test_the_same_pool_seen_again_knows_endpoints_that_came_into_the_index_meanwhile():
    index, members = PrefixIndex(PLENTY), pool("a", "b")
    index.insert("ns/b", [1], 100)
    assert index.match([1], members).tolist() == [0, 1]
    index.insert("ns/a", [1], 100)
    assert index.match([1], members).tolist() == [1, 1]
    index.forget("ns/b")
    assert index.match([1], members).tolist() == [1, 0]


def test_many_endpoints_share_one_prefix():
    index = PrefixIndex(PLENTY)
    names = [f"e{i}" for i in range(200)]
    for i, name in enumerate(names):
        index.insert(f"ns/{name}", [1, 2, 3][: 1 + i % 3], 100)
    assert index.match([1, 2, 3], pool(*names)).tolist() == [1 + i % 3 for i in range(200)]


@pytest.mark.parametrize("blocks", [5_000, 50_000])
def test_real_memory_is_what_the_documentation_says(blocks):
    rng = random.Random(7)
    chains = [[rng.getrandbits(HASH_BITS) for _ in range(500)] for _ in range(blocks // 500)]
    tracemalloc.start()
    try:
        index = PrefixIndex(PLENTY)
        while chains:
            index.insert(f"ns/{len(chains) % 10}", [int(str(h)) for h in chains.pop()], PLENTY)
        held_bytes, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ENTRY_BYTES / 2 <= held_bytes / blocks <= ENTRY_BYTES


def test_what_many_servers_share_weighs_less_on_each():
    rng = random.Random(7)
    chains = [[rng.getrandbits(HASH_BITS) for _ in range(500)] for _ in range(4)]
    tracemalloc.start()
    try:
        index = PrefixIndex(PLENTY)
        for chain in chains:
            for i in range(20):
                index.insert(f"ns/{i}", [int(str(h)) for h in chain], PLENTY)
        held_bytes, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == 20 * 4 * 500
    assert held_bytes / len(index) <= 0.75 * ENTRY_BYTES


def test_a_burst_of_unique_long_prompts_never_passes_the_bound():
    bound_bytes = 1000 * ENTRY_BYTES
    index = PrefixIndex(bound_bytes)
    rng = random.Random(3)
    for i in range(200):
        index.insert(f"ns/{i % 50}", [rng.getrandbits(64) for _ in range(63)], 31_250)
        assert index.size_bytes <= bound_bytes
    assert len(index) > 900


class NaiveIndex:
    """Per endpoint a list, oldest use first; lookups by brute force."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.held: dict[str, list[int]] = {}

    def insert(self, endpoint: str, hashes: list[int], capacity: int) -> None:
        blocks = self.held.setdefault(endpoint, [])
        for block in reversed(hashes[:capacity]):
            if block in blocks:
                blocks.remove(block)
            blocks.append(block)
        del blocks[: max(0, len(blocks) - capacity)]
        while (excess := sum(map(len, self.held.values())) - self.max_blocks) > 0:
            del max(self.held.values(), key=len)[:excess]

    def match(self, endpoint: str, hashes: list[int]) -> int:
        held = self.held.get(endpoint, [])
        return next((i for i, block in enumerate(hashes) if block not in held), len(hashes))


def chain_of(head: int, tail: int) -> list[int]:
    """As hashes are chained: blocks that stand behind different heads are different blocks."""
    first = 1000 * (head + 1) + 100 * tail
    return [*range(1, head + 1), *range(first, first + tail)]


CHAINS = st.builds(chain_of, st.integers(0, 6), st.integers(0, 4))
NAMES = st.sampled_from(["a", "b", "c"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("insert"), NAMES, CHAINS, st.integers(1, 12)),
            st.tuples(st.just("forget"), NAMES),
            st.tuples(st.just("match"), st.permutations(["a", "b", "c"]), CHAINS),
        ),
        max_size=30,
    )
)
def test_any_history_matches_a_naive_model(steps):
    max_blocks = 20
    index, naive = PrefixIndex(max_blocks * ENTRY_BYTES), NaiveIndex(max_blocks)
    for verb, *args in steps:
        match verb:
            case "insert":
                name, chain, capacity = args
                index.insert(f"ns/{name}", chain, capacity)
                naive.insert(name, chain, capacity)
            case "forget":
                index.forget(f"ns/{args[0]}")
                naive.held.pop(args[0], None)
            case "match":
                names, chain = args
                assert index.match(chain, pool(*names)).tolist() == [naive.match(name, chain) for name in names]
        assert index.blocks_by_endpoint() == {f"ns/{name}": len(blocks) for name, blocks in naive.held.items()}
        assert len(index) == sum(map(len, naive.held.values()))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_prompts_leave_the_same_blocks_in_the_same_order_as_a_naive_model(seed):
    rng = random.Random(seed)
    index, naive = PrefixIndex(4_000 * ENTRY_BYTES), NaiveIndex(4_000)
    trunks = [[rng.getrandbits(HASH_BITS) for _ in range(500)] for _ in range(3)]
    for _ in range(60):
        name, capacity = rng.choice("abc"), rng.choice([400, 1_500])
        own = [rng.getrandbits(HASH_BITS) for _ in range(rng.choice([3, 300, 600]))]
        trunk = rng.choice(trunks)
        # Part of a prompt seen before and then another, a new one, and (as peers tell each other) old behind new.
        chain = rng.choice([trunk[: rng.randrange(500)] + own, own, own + trunk[rng.randrange(500) :]])
        index.insert(f"ns/{name}", [block + 0 for block in chain], capacity)
        naive.insert(name, chain, capacity)
        for known, blocks in naive.held.items():
            assert index.blocks_of(f"ns/{known}") == blocks[::-1]
        assert len(index) == sum(map(len, naive.held.values()))
    members = pool(*"abc")
    for trunk in trunks:  # each on its own: what holds a block, and not what the chain makes of it
        for block in trunk:
            held = [float(block in naive.held.get(name, ())) for name in "abc"]
            assert index.match([block], members).tolist() == held
