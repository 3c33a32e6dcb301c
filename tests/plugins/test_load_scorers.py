"""Scorers that read our own counts."""

import numpy as np
import pytest
from plugin_fakes import a_cycle, decide, make, pool
from pydantic import ValidationError

from epp.ledger import Ledger
from epp.scheduling.data import IN_FLIGHT_LOAD, PREFIX_MATCH, UNCACHED_TOKENS, InFlightLoad, PrefixMatch, UncachedTokens


def load_of(*requests, tokens=None):
    counts = np.array(requests, dtype=float)
    none = np.zeros_like(counts)
    return InFlightLoad(counts, np.array(tokens, dtype=float) if tokens else none, none, none)


def active_scores(parameters, *requests):
    plugin = make("active-request-scorer", parameters)
    cycle = a_cycle()
    cycle.publish(plugin.consumes[0], load_of(*requests))
    return plugin.score(cycle, pool(size=len(requests))).tolist()


@pytest.mark.parametrize(
    ("parameters", "requests", "expected"),
    [
        ({}, (0, 1, 4), [1, 0.75, 0]),
        ({}, (3, 3), [0, 0]),
        ({}, (0, 0), [1, 1]),
        ({}, (5,), [0]),
        ({"idleThreshold": 1, "maxBusyScore": 0.5}, (0, 1, 2, 4), [1, 1, 0.25, 0]),
        ({"idleThreshold": -4}, (0, 2), [1, 0]),
        ({"maxBusyScore": 1.5}, (1, 4), [0.75, 0]),
        ({"maxBusyScore": 0}, (0, 1, 4), [1, 0, 0]),
        ({"requestTimeout": "2m"}, (0, 2), [1, 0]),
    ],
)
def test_active_request_scorer(parameters, requests, expected):
    assert active_scores(parameters, *requests) == expected


def test_active_request_scorer_without_counts_sees_idle_servers():
    assert make("active-request-scorer").score(a_cycle(), pool(size=2)).tolist() == [1, 1]


def test_producers_are_read_by_their_name():
    plugin = make("active-request-scorer", {"inFlightLoadProducerName": "mine"})
    assert plugin.consumes == (IN_FLIGHT_LOAD.by("mine"),)
    assert make("active-request-scorer").consumes == (IN_FLIGHT_LOAD.by("inflight-load-producer"),)


def test_token_load_scorer_counts_this_request_too():
    plugin = make("token-load-scorer", {"queueThresholdTokens": 1000})
    cycle = a_cycle()
    cycle.publish(IN_FLIGHT_LOAD.by(None), load_of(1, 1, 0, 9, tokens=(200, 200, 0, 5000)))
    cycle.publish(UNCACHED_TOKENS.by(None), UncachedTokens(np.array([300.0, 0.0, 300.0, 0.0]), 0.0))
    assert plugin.score(cycle, pool(size=4)).tolist() == [0.5, 0.8, 0.7, 0.0]


def test_token_load_scorer_without_data_scores_all_alike():
    assert make("token-load-scorer").score(a_cycle(), pool(size=2)).tolist() == [1, 1]


def test_a_burst_between_two_scrapes_spreads_because_our_own_counts_are_never_stale():
    ledger = Ledger()
    producer, scorer = make("inflight-load-producer", ledger=ledger), make("active-request-scorer")
    picker, candidates = make("max-score-picker"), pool(size=4)
    for i in range(40):
        cycle = a_cycle(seed=i)
        producer.produce(cycle, candidates)
        (row,) = picker.pick(cycle, candidates, scorer.score(cycle, candidates))
        ledger.reserve(f"s{i}", candidates.snapshot.endpoints[row].id, prefill_tokens=0)
    assert [ledger.in_flight(e.id).requests for e in candidates.endpoints] == [10, 10, 10, 10]


def prefix_scores(parameters, matched, total, block=64):
    plugin = make("prefix-cache-scorer", parameters)
    cycle = a_cycle()
    cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array(matched, dtype=float), total, block))
    return plugin.score(cycle, pool(size=len(matched))).tolist()


def test_prefix_cache_scorer():
    assert prefix_scores({}, [0, 6, 8], 8) == [0, 0.75, 1]
    assert prefix_scores({}, [0, 0], 0) == [0, 0]
    assert make("prefix-cache-scorer").score(a_cycle(), pool(size=2)).tolist() == [0, 0]


def test_prefix_cache_scorer_can_weigh_the_length_of_a_match():
    half = prefix_scores({"matchLengthWeight": 0.5}, [6], 8)
    assert half == [pytest.approx(0.5 * 0.75 + 0.5 * (384 / 8192) ** 2)]
    assert prefix_scores({"matchLengthWeight": 1, "matchLengthScaleTokens": 128}, [1, 2, 8], 8) == [0.25, 1, 1]


@pytest.mark.parametrize(
    "bad",
    [
        {"matchLengthWeight": 1.1},
        {"matchLengthWeight": -0.1},
        {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 0},
        {"unknown": 1},
    ],
)
def test_prefix_cache_scorer_refuses(bad):
    with pytest.raises(ValidationError):
        make("prefix-cache-scorer", bad)


def cold_choice(plugin, candidates, matched=()):
    cycle = a_cycle()
    blocks = np.array(matched or [0] * len(candidates), dtype=float)
    cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(blocks, 4, 64))
    return cycle, plugin.score(cycle, candidates).tolist()


def test_no_hit_lru_scorer_sends_cold_prompts_around():
    plugin, candidates = make("no-hit-lru-scorer"), pool(size=3)
    cycle, scores = cold_choice(plugin, candidates)
    assert scores == [1, 0.5, 0]
    plugin.pre_request(cycle, decide(candidates, 1))
    assert cold_choice(plugin, candidates)[1] == [1, 0, 0.5]
    warm_cycle, scores = cold_choice(plugin, candidates, matched=(0, 0, 2))
    assert scores == [0.5, 0.5, 0.5]
    plugin.pre_request(warm_cycle, decide(candidates, 2))
    assert cold_choice(plugin, candidates)[1] == [1, 0, 0.5]
    assert cold_choice(plugin, pool(size=1))[1] == [1]


def test_no_hit_lru_scorer_also_turns_the_prefill_servers_and_forgets_beyond_its_size():
    plugin, candidates = make("no-hit-lru-scorer", {"lruSize": 2}), pool(size=3)
    cycle, _ = cold_choice(plugin, candidates)
    plugin.pre_request(cycle, decide(candidates, 0, prefill_row=2))
    assert plugin.dump_state() == {"longest_unused_first": ["ns/pod-0", "ns/pod-2"]}
    cycle, _ = cold_choice(plugin, candidates)
    plugin.pre_request(cycle, decide(candidates, 1))
    assert plugin.dump_state() == {"longest_unused_first": ["ns/pod-2", "ns/pod-1"]}
