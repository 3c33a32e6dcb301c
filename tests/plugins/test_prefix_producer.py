"""Prefix affinity: who is credited with what, for how long, and what makes it go away."""

import random
from collections import Counter

import numpy as np
import pytest
from plugin_fakes import a_cycle, decide, make, pool, signals
from pydantic import ValidationError

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.prefix.index import ENTRY_BYTES
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import PREFIX_MATCH

BLOCK_BYTES = 64 * 4


def text(blocks, fill=b"a", tail=b""):
    return fill * (BLOCK_BYTES * blocks) + tail


class Affinity:
    """token-producer, approx-prefix-cache-producer and a choice, as the framework runs them."""

    def __init__(self, parameters=None, **make_more):
        self.tokens = make("token-producer")
        self.prefix = make("approx-prefix-cache-producer", parameters, **make_more)

    def look(self, candidates, *prompts, **request):
        cycle = a_cycle(*prompts, **request)
        self.tokens.produce(cycle, candidates)
        self.prefix.produce(cycle, candidates)
        return cycle, cycle.get(PREFIX_MATCH.by(self.prefix.name))

    def send(self, candidates, row, *prompts, prefill_row=None, **request):
        cycle, _ = self.look(candidates, *prompts, **request)
        decision = decide(candidates, row, prefill_row=prefill_row)
        self.prefix.pre_request(cycle, decision)
        return cycle, decision

    def matched(self, candidates, *prompts, **request):
        return self.look(candidates, *prompts, **request)[1].match_blocks.tolist()


def test_a_prompt_matches_where_it_was_sent_before():
    affinity, candidates = Affinity(), pool(size=3)
    affinity.send(candidates, 1, text(4))
    _, match = affinity.look(candidates, text(4) + text(4, b"b"))
    assert match.match_blocks.tolist() == [0, 4, 0]
    assert (match.total_blocks, match.block_size_tokens) == (8, 64)
    assert match.ratio.tolist() == [0, 0.5, 0]


def test_of_two_equal_requests_the_second_goes_to_the_server_of_the_first():
    affinity, candidates = Affinity(), pool(size=4)
    scorer, picker = make("prefix-cache-scorer"), make("max-score-picker")
    first = None
    for seed in range(20):
        cycle, _ = affinity.look(candidates, text(3), seed=seed)
        (row,) = picker.pick(cycle, candidates, scorer.score(cycle, candidates))
        first = row if first is None else first
        assert row == first
        affinity.prefix.pre_request(cycle, decide(candidates, row))


def test_a_burst_of_equal_cold_requests_sees_the_first_at_once():
    affinity, candidates = Affinity(), pool(size=8)
    affinity.send(candidates, 5, text(2))
    assert affinity.matched(candidates, text(2))[5] == 2


def test_the_match_is_contiguous_from_the_start():
    affinity, candidates = Affinity(), pool(size=2)
    affinity.send(candidates, 0, text(1, b"B"))
    affinity.send(candidates, 1, text(1, b"A"))
    assert affinity.matched(candidates, text(1, b"A") + text(1, b"B")) == [0, 1]


def test_models_adapters_and_salts_do_not_match_each_other():
    affinity, candidates = Affinity(), pool(size=1)
    affinity.send(candidates, 0, text(2), model="llama", cache_salt="tenant-a")
    assert affinity.matched(candidates, text(2), model="llama", cache_salt="tenant-a") == [2]
    assert affinity.matched(candidates, text(2), model="llama", cache_salt="tenant-b") == [0]
    assert affinity.matched(candidates, text(2), model="llama") == [0]
    assert affinity.matched(candidates, text(2), model="llama-lora", cache_salt="tenant-a") == [0]


def test_what_is_not_in_the_prompt_does_not_matter():
    affinity, candidates = Affinity(), pool(size=1)
    affinity.send(candidates, 0, text(2), headers={"x-user": "1"}, max_output_tokens=5, body_bytes=700)
    assert affinity.matched(candidates, text(2), headers={"x-user": "2"}, streaming=True, body_bytes=900) == [2]


def test_several_prompts_add_up():
    affinity, candidates = Affinity(), pool(size=2)
    affinity.send(candidates, 0, text(2, b"a"))
    affinity.send(candidates, 1, text(3, b"b"))
    _, match = affinity.look(candidates, text(2, b"a"), text(3, b"b"))
    assert match.match_blocks.tolist() == [2, 3]
    assert match.total_blocks == 5


def test_a_prompt_below_one_block_matches_nowhere():
    affinity, candidates = Affinity(), pool(size=1)
    affinity.send(candidates, 0, b"hello")
    _, match = affinity.look(candidates, b"hello")
    assert (match.match_blocks.tolist(), match.total_blocks, match.ratio.tolist()) == ([0], 0, [0])


def test_a_request_without_a_prompt_changes_nothing():
    affinity, candidates = Affinity(), pool(size=1)
    cycle, _ = affinity.send(candidates, 0)
    assert cycle.observations == []
    assert affinity.prefix.indexed_blocks == 0


def test_the_prefill_server_is_credited_too():
    affinity, candidates = Affinity(), pool(size=3)
    affinity.send(candidates, 0, text(2), prefill_row=2)
    assert affinity.matched(candidates, text(2)) == [2, 0, 2]


def test_a_fallback_that_served_is_credited():
    affinity, candidates = Affinity(), pool(size=2)
    cycle, decision = affinity.send(candidates, 0, text(2))
    affinity.prefix.response_headers(cycle, decision, 200, {}, "10.0.0.2:8000")
    assert affinity.matched(candidates, text(2)) == [2, 2]
    assert affinity.prefix.name not in cycle.state


def replaced(candidates, row, version, **change):
    members = list(candidates.snapshot.endpoints)
    old = members[row]
    members[row] = Endpoint(old.namespace, old.name, change.get("host", old.host), old.port)
    return Candidates.all_of(Snapshot.build(tuple(members), version=version, endpoints_version=version))


def test_a_server_that_left_starts_anew_when_it_comes_back():
    affinity, candidates = Affinity(), pool(size=2, version=1)
    affinity.send(candidates, 1, text(3))
    assert affinity.matched(pool(size=1, version=2), text(3)) == [0]
    assert affinity.prefix.indexed_blocks == 0
    assert affinity.matched(pool(size=2, version=3), text(3)) == [0, 0]


def test_a_server_at_another_address_starts_anew():
    affinity, candidates = Affinity(), pool(size=2, version=1)
    affinity.send(candidates, 0, text(3))
    affinity.send(candidates, 1, text(3))
    assert affinity.matched(replaced(candidates, 1, 2, host="10.9.9.9"), text(3)) == [3, 0]


def test_a_late_request_does_not_bring_back_a_server_that_is_gone():
    affinity, old = Affinity(), pool(size=2, version=1)
    cycle, _ = affinity.look(old, text(3))
    affinity.look(pool(size=1, version=2), text(1))
    affinity.prefix.pre_request(cycle, decide(old, 1))
    assert affinity.prefix.indexed_blocks == 0
    affinity.look(old, text(1))  # an old snapshot must not undo what a newer one said
    assert affinity.matched(pool(size=1, version=2), text(3)) == [0]


def test_ranks_of_one_pod_are_told_apart():
    members = tuple(Endpoint("ns", f"pod-rank-{i}", "10.0.0.1", 8000 + i) for i in range(2))
    candidates = Candidates.all_of(Snapshot.build(members))
    affinity = Affinity()
    affinity.send(candidates, 1, text(2))
    assert affinity.matched(candidates, text(2)) == [0, 2]


def geometry(*block_sizes, blocks=4000, version=1):
    rows = (signals(kv_block_size_tokens=size, kv_blocks=blocks) for size in block_sizes)
    return pool(*rows, version=version)


@pytest.mark.parametrize(
    ("parameters", "reported", "expected"),
    [
        ({}, (16, 16), 64),
        ({}, (None, None), 64),
        ({}, (128, None), 128),
        ({}, (16, 128), 128),
        ({}, (10**9, 16), 64),
        ({"blockSizeTokens": 256}, (None,), 256),
        ({"blockSizeTokens": 256}, (16,), 64),
        ({"autoTune": False, "blockSizeTokens": 1}, (128,), 64),
        ({"autoTune": False, "blockSizeTokens": 100}, (128,), 100),
        ({"autoTune": False, "blockSize": 100}, (128,), 100),
        ({"autoTune": False, "blockSize": 100, "blockSizeTokens": 200}, (128,), 200),
    ],
)
def test_block_size(parameters, reported, expected):
    _, match = Affinity(parameters).look(geometry(*reported), text(4))
    assert match.block_size_tokens == expected
    assert match.total_blocks == 4 * BLOCK_BYTES // (expected * 4)


def test_a_pool_that_rolls_to_another_block_size_matches_again():
    affinity = Affinity()
    affinity.send(geometry(32, 32), 0, text(8))
    assert affinity.matched(geometry(32, 32), text(8)) == [8, 0]
    assert affinity.matched(geometry(32, 128), text(8)) == [0, 0]
    affinity.send(geometry(32, 128), 0, text(8))
    assert affinity.matched(geometry(32, 128), text(8)) == [4, 0]


def test_capacity_is_the_servers_own_in_our_blocks_and_follows_it():
    affinity = Affinity()
    affinity.send(geometry(16, blocks=400), 0, text(1) + random.Random(1).randbytes(BLOCK_BYTES * 500))
    assert affinity.prefix.indexed_blocks == 100
    affinity.send(geometry(16, blocks=4000), 0, random.Random(2).randbytes(BLOCK_BYTES * 500))
    assert affinity.prefix.indexed_blocks == 600
    affinity.send(geometry(16, blocks=40), 0, text(1))
    assert affinity.prefix.indexed_blocks == 10


@pytest.mark.parametrize(("capacity", "expected"), [(20, 20), (0, 600), (-1, 600)])
def test_capacity_of_servers_that_do_not_say(capacity, expected):
    affinity = Affinity({"lruCapacityPerServer": capacity})
    affinity.send(pool(size=1), 0, random.Random(1).randbytes(BLOCK_BYTES * 600))
    assert affinity.prefix.indexed_blocks == expected


def test_small_blocks_and_many_servers_stay_within_the_memory_that_is_allowed():
    affinity = Affinity({"blockSizeTokens": 1, "maxIndexBytes": 500 * ENTRY_BYTES})
    candidates, rng = geometry(*[16] * 50, blocks=100_000), random.Random(3)
    for i in range(300):
        affinity.send(candidates, i % 50, rng.randbytes(BLOCK_BYTES * 20))
        assert affinity.prefix.dump_state()["size_bytes"] <= 500 * (ENTRY_BYTES + 4)
    assert affinity.prefix.indexed_blocks > 400


@pytest.mark.parametrize(
    ("parameters", "total"),
    [
        ({}, 2048),
        ({"maxPrefixTokensToMatch": 640}, 10),
        ({"maxPrefixTokensToMatch": 63}, 0),
        ({"maxPrefixTokensToMatch": 0}, 2048),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 7}, 7),
        ({"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 3000),
    ],
)
def test_prompts_are_looked_at_up_to_a_limit(parameters, total):
    _, match = Affinity(parameters).look(pool(size=1), text(3000))
    assert match.total_blocks == total


def test_hits_are_observed_for_the_chosen_server_only():
    affinity, candidates = Affinity(name="mine"), pool(size=2)
    affinity.send(candidates, 0, text(3))
    cycle, _ = affinity.send(candidates, 0, text(3) + text(1, b"b"))
    assert [(o.family, o.value, o.plugin_name, o.plugin_type) for o in cycle.observations] == [
        ("prefix_indexer_size", 4.0, "mine", "approx-prefix-cache-producer"),
        ("prefix_indexer_hit_ratio", 0.75, "mine", "approx-prefix-cache-producer"),
        ("prefix_indexer_hit_bytes", 3 * BLOCK_BYTES, "mine", "approx-prefix-cache-producer"),
    ]
    cycle, _ = affinity.send(candidates, 1, text(3, b"c"))
    assert [o.value for o in cycle.observations] == [7, 0, 0]


def test_state_for_the_debug_page_holds_counts_and_no_prompt():
    affinity, candidates = Affinity(), pool(size=2)
    affinity.send(candidates, 1, text(3))
    assert affinity.prefix.dump_state() == {
        "block_size_tokens": 64,
        "blocks": 3,
        "size_bytes": 3 * ENTRY_BYTES,
        "blocks_by_endpoint": {"ns/pod-1": 3},
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"autoTune": False, "blockSizeTokens": 0},
        {"maxPrefixTokensToMatch": -1},
        {"maxIndexBytes": 0},
        {"blockSizeTokens": 16.0},
        {"lruCapacity": 5},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("approx-prefix-cache-producer", bad)


def test_unrelated_prompts_spread_over_idle_servers():
    affinity, candidates, rng = Affinity(), pool(size=4), random.Random(9)
    scorer, picker, went = make("prefix-cache-scorer"), make("max-score-picker"), Counter()
    for seed in range(400):
        cycle, _ = affinity.look(candidates, rng.randbytes(BLOCK_BYTES * 2), seed=seed)
        (row,) = picker.pick(cycle, candidates, scorer.score(cycle, candidates))
        affinity.prefix.pre_request(cycle, decide(candidates, row))
        went[row] += 1
    assert all(70 <= went[row] <= 130 for row in range(4))


def test_a_shared_system_prompt_does_not_pin_a_burst_to_one_server():
    """With llm-d's default weights: queue 2, KV cache 2, prefix 3. The other servers' caches warm up on the way."""
    affinity, rng = Affinity(), random.Random(9)
    weighted = [(make("queue-scorer"), 2), (make("kv-cache-utilization-scorer"), 2), (make("prefix-cache-scorer"), 3)]
    picker, went = make("max-score-picker"), Counter()
    for seed in range(200):
        rows = [
            signals(waiting_requests=max(0, went[r] - 5), kv_cache_usage_ratio=min(1, went[r] / 40)) for r in range(4)
        ]
        candidates = pool(*rows)
        cycle, _ = affinity.look(candidates, text(32) + rng.randbytes(BLOCK_BYTES * 8), seed=seed)
        totals = sum(weight * scorer.score(cycle, candidates) for scorer, weight in weighted)
        (row,) = picker.pick(cycle, candidates, np.asarray(totals))
        affinity.prefix.pre_request(cycle, decide(candidates, row))
        went[row] += 1
    assert max(went.values()) <= 0.6 * 200


def restarted(*counts, version):
    return pool(*(signals(restarts=count) for count in counts), version=version)


def test_a_server_restarted_in_place_is_credited_with_nothing_and_its_neighbour_keeps_its_own():
    affinity, before = Affinity(), restarted(0, 0, version=1)
    affinity.send(before, 0, text(3))
    affinity.send(before, 1, text(3))
    assert affinity.matched(restarted(0, 0, version=2), text(3)) == [3, 3]
    after = restarted(1, 0, version=3)
    assert affinity.matched(after, text(3)) == [0, 3]
    affinity.send(after, 0, text(3))
    assert affinity.matched(restarted(1, 0, version=4), text(3)) == [3, 3]


def test_a_held_request_with_an_older_snapshot_forgets_nothing():
    affinity, old, new = Affinity(), restarted(0, version=1), restarted(1, version=2)
    affinity.look(old, text(1))
    affinity.send(new, 0, text(3))
    assert affinity.matched(old, text(3)) == [3]
    assert affinity.matched(new, text(3)) == [3]


def test_a_server_that_is_scraped_at_last_keeps_what_it_was_sent():
    affinity, unknown = Affinity(), pool(size=1, version=1)
    affinity.send(unknown, 0, text(3))
    assert affinity.matched(restarted(4, version=2), text(3)) == [3]
