"""Tiers by predicted headroom, and affinity to cached prefixes with its price."""

from collections import Counter

import numpy as np
import pytest
from latency_fakes import NONE, cycle_with, headrooms, predicted
from plugin_fakes import make, pool
from pydantic import ValidationError

from epp.scheduling.candidates import Candidates
from epp.scheduling.data import IN_FLIGHT_LOAD, LATENCY_PREDICTION, PREFIX_MATCH, InFlightLoad, PrefixMatch

LLM_D = {"compatibility": "llm-d"}


# --- slo-headroom-tier-filter ---------------------------------------------------------------------------------------


def tier(prediction, parameters=None, *, size=None, candidates=None, seed=7, **slow_start):
    candidates = candidates or pool(size=size or len(prediction.ttft_ms))
    cycle = cycle_with(prediction, seed=seed, **slow_start)
    return make("slo-headroom-tier-filter", {"epsilonExploreNeg": 0} | (parameters or {})).filter(cycle, candidates)


def rows(candidates):
    return candidates.rows.tolist()


def test_those_that_would_miss_are_dropped():
    assert rows(tier(predicted([100, 600, 400], slo=(500, None)))) == [0, 2]
    assert rows(tier(predicted([100, 100], [60, 40], slo=(500, 50)))) == [1]


@pytest.mark.parametrize("ttft", [[100, 200], [600, 700]])
def test_one_tier_stays_whole(ttft):
    assert rows(tier(predicted(ttft, slo=(500, None)))) == [0, 1]


def test_without_a_target_nobody_misses():
    assert rows(tier(predicted([100, 90_000]))) == [0, 1]


def test_without_predictions_all_stay():
    assert rows(tier(None, size=2)) == [0, 1]
    assert rows(tier(predicted([NONE, NONE], slo=(500, None)))) == [0, 1]


def test_a_server_without_a_prediction_is_no_miss_and_no_hit():
    assert rows(tier(predicted([100, NONE, 900], slo=(500, None)))) == [0, 1]
    assert rows(tier(predicted([NONE, 900], slo=(500, None)))) == [0, 1]


def test_a_share_of_requests_goes_to_those_that_would_miss():
    prediction = predicted([100, 900], slo=(500, None))
    kept = [rows(tier(prediction, {"epsilonExploreNeg": 0.2}, seed=seed)) for seed in range(500)]
    assert 60 < kept.count([1]) < 140
    assert kept.count([0]) == 500 - kept.count([1])
    assert rows(tier(prediction, {"epsilonExploreNeg": 1})) == [1]


def test_new_servers_are_dropped_until_it_is_their_turn():
    prediction = predicted([100, 100, 100])
    assert rows(tier(prediction, held_back=[0, 0, 1])) == [0, 1]
    assert rows(tier(prediction, held_back=[0, 0, 1], turn=2)) == [2]
    assert rows(tier(None, size=3, held_back=[0, 0, 1], turn=2)) == [2]


@pytest.mark.parametrize(
    ("prediction", "kept"),
    [
        (headrooms((10, 5), (-1, 5), (10, -1)), [0]),
        (headrooms((0, 0), (-1, 5)), [0]),
        (predicted([100, NONE], [1, NONE], slo=(500, 50)), [0]),
        (predicted([900, NONE], [1, NONE], slo=(500, 50)), [0, 1]),
        (predicted([NONE, NONE], slo=(500, None)), [0, 1]),
        (headrooms((-5, 5), (-1, 5)), [0, 1]),
    ],
)
def test_tiers_like_llm_d(prediction, kept):
    assert rows(tier(prediction, LLM_D)) == kept


@pytest.mark.parametrize("bad", [{"epsilonExploreNeg": -0.1}, {"epsilonExploreNeg": 1.1}, {"compatibility": "gie"}])
def test_bad_tier_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("slo-headroom-tier-filter", bad)


# --- prefix-cache-affinity-filter -----------------------------------------------------------------------------------


def affinity(matched, parameters=None, *, ttft=None, tokens=None, seed=7, **slow_start):
    size = len(matched)
    cycle = cycle_with(None if ttft is None else predicted(ttft), seed=seed, **slow_start)
    cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array(matched, dtype=float), 10, 64))
    if tokens is not None:
        zeros = np.zeros(size)
        cycle.publish(IN_FLIGHT_LOAD.by(None), InFlightLoad(zeros, np.array(tokens, dtype=float), zeros, zeros))
    return rows(make("prefix-cache-affinity-filter", parameters).filter(cycle, pool(size=size)))


PREDICTED = {"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000}


def test_warm_servers_are_kept():
    assert affinity([8, 7, 10]) == [0, 2]
    assert affinity([9, 10], {"affinityThreshold": 0.99}) == [1]


def test_without_a_warm_server_all_are_kept():
    assert affinity([0, 7]) == [0, 1]


@pytest.mark.parametrize("threshold", [0, -1])
def test_a_threshold_of_nothing_switches_it_off(threshold):
    assert affinity([10, 0], {"affinityThreshold": threshold}) == [0, 1]


@pytest.mark.parametrize(("warm_ms", "kept"), [(7999, [0]), (8000, [0]), (8001, [0, 1])])
def test_a_wait_above_the_penalty_breaks_affinity(warm_ms, kept):
    assert affinity([10, 0], PREDICTED, ttft=[warm_ms, 3000]) == kept


def test_the_best_of_each_side_is_compared():
    assert affinity([10, 10, 0, 0], PREDICTED, ttft=[90_000, 4000, 3000, 90_000]) == [0, 1]


def test_by_throughput_the_wait_is_tokens_in_flight():
    """15,928 tokens are one second."""
    assert affinity([10, 0], {"maxTTFTPenaltyMs": 1000}, tokens=[15_928, 0]) == [0]
    assert affinity([10, 0], {"maxTTFTPenaltyMs": 1000}, tokens=[15_945, 0]) == [0, 1]
    assert affinity([10, 0], tokens=[15_928 * 18, 0]) == [0]
    assert affinity([10, 0]) == [0]


def test_a_penalty_of_nothing_is_any_wait():
    assert affinity([10, 0], PREDICTED | {"maxTTFTPenaltyMs": 0}, ttft=[1e9, 1]) == [0]


@pytest.mark.parametrize("ttft", [None, [NONE, 10], [100, NONE], [NONE, NONE]])
def test_what_is_not_known_breaks_no_affinity(ttft):
    assert affinity([10, 0], PREDICTED, ttft=ttft) == [0]


@pytest.mark.parametrize(("ttft", "kept"), [([NONE, 10], [0, 1]), ([100, NONE], [0]), ([NONE, NONE], [0])])
def test_what_is_not_known_takes_for_ever_like_llm_d(ttft, kept):
    assert affinity([10, 0], PREDICTED | LLM_D, ttft=ttft) == kept


def test_exploration_lets_a_share_of_requests_go():
    kept = [affinity([10, 0], {"explorationProbability": 0.3}, seed=seed) for seed in range(300)]
    assert 60 < kept.count([0, 1]) < 120


def test_a_shared_system_prompt_does_not_nail_a_burst_to_one_server():
    """The load of what was sent there raises the wait for the warm server until affinity breaks."""
    tokens, sent = [0.0] * 4, Counter()
    for _ in range(400):
        kept = affinity([10, 0, 0, 0], {"maxTTFTPenaltyMs": 1000}, tokens=tokens)
        row = min(kept, key=lambda r: tokens[r])
        sent[row] += 1
        tokens[row] += 1000
    assert max(sent.values()) < 0.6 * 400


def test_a_new_server_has_its_turn_before_affinity():
    assert affinity([10, 0, 0], held_back=[0, 0, 1], turn=2) == [2]
    assert affinity([10, 0, 10], held_back=[0, 0, 1]) == [0]


@pytest.mark.parametrize(
    "bad",
    [
        {"affinityThreshold": 1.1},
        {"explorationProbability": 2},
        {"maxTTFTPenaltyMs": -1},
        {"ttftSource": "guess"},
        {"peakPrefillThroughput": 0},
        {"peakPrefillThroughput": -1, "maxTTFTPenaltyMs": 0},
    ],
)
def test_bad_affinity_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("prefix-cache-affinity-filter", bad)


def test_throughput_may_be_nothing_when_it_is_not_used():
    for unused in ({"maxTTFTPenaltyMs": 0}, {"ttftSource": "latencyPredictor"}):
        make("prefix-cache-affinity-filter", {"peakPrefillThroughput": 0} | unused)


def test_only_what_is_used_is_read():
    def consumed(parameters):
        return make("prefix-cache-affinity-filter", parameters).consumes

    match = PREFIX_MATCH.by(None)
    assert consumed({}) == (match, IN_FLIGHT_LOAD.by(None))
    assert consumed(PREDICTED) == (match, LATENCY_PREDICTION.by(None))
    assert consumed(PREDICTED | {"maxTTFTPenaltyMs": 0}) == (match,)


@pytest.mark.parametrize("plugin_type", ["prefix-cache-affinity-filter", "slo-headroom-tier-filter"])
def test_a_single_candidate_stays(plugin_type):
    candidates = Candidates(pool(size=3).snapshot, np.array([1]))
    cycle = cycle_with(predicted([1, 900, 1], slo=(500, None)))
    cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array([10.0, 0, 0]), 10, 64))
    assert rows(make(plugin_type).filter(cycle, candidates)) == [1]
