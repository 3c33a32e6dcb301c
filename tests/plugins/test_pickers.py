"""Pickers pick what their scores say, share by chance where they say so, and name fallbacks in order."""

from collections import Counter

import numpy as np
import pytest
from plugin_fakes import a_cycle, decide, make, pool

PICKERS = ["max-score-picker", "random-picker", "weighted-random-picker"]


def pick(plugin, totals, cycle, candidates=None):
    totals = np.array(totals, dtype=float)
    return list(plugin.pick(cycle, candidates or pool(size=len(totals)), totals))


def shares(plugin, totals, *, of, times=4000):
    cycle = a_cycle(seed=11)
    counts = Counter(pick(plugin, totals, cycle)[of] for _ in range(times))
    return [counts[row] / times for row in range(len(totals))]


@pytest.mark.parametrize("plugin_type", PICKERS)
@pytest.mark.parametrize(("maximum", "expected"), [(None, 1), (1, 1), (0, 1), (-5, 1), (2, 2), (3, 3), (99, 3)])
def test_number_of_endpoints(plugin_type, maximum, expected):
    plugin = make(plugin_type, {} if maximum is None else {"maxNumOfEndpoints": maximum})
    rows = pick(plugin, [0.5, 1.0, 0.2], a_cycle())
    assert len(rows) == len(set(rows)) == expected
    assert all(type(row) is int for row in rows)


@pytest.mark.parametrize("plugin_type", PICKERS)
def test_only_candidates_are_picked(plugin_type):
    left = pool(size=5).where(np.array([False, True, False, True, False]))
    plugin = make(plugin_type, {"maxNumOfEndpoints": 5})
    assert sorted(pick(plugin, [0.1, 0.9], a_cycle(), left)) == [1, 3]


@pytest.mark.parametrize("plugin_type", PICKERS)
def test_a_single_candidate_is_picked_whatever_its_score(plugin_type):
    for total in (0.0, -1.0, 1e-300, 7.0):
        assert pick(make(plugin_type), [total], a_cycle()) == [0]


@pytest.mark.parametrize("plugin_type", PICKERS)
def test_the_same_seed_gives_the_same_picks(plugin_type):
    plugin = make(plugin_type, {"maxNumOfEndpoints": 3})
    runs = [[pick(plugin, [1, 1, 2, 2], cycle) for _ in range(20)] for cycle in (a_cycle(seed=5), a_cycle(seed=5))]
    assert runs[0] == runs[1]


def test_max_score_names_fallbacks_in_score_order():
    plugin = make("max-score-picker", {"maxNumOfEndpoints": 3})
    assert pick(plugin, [0.1, 3.0, -2.0, 2.0], a_cycle()) == [1, 3, 0]


@pytest.mark.parametrize("maximum", [1, 4])
def test_idle_equal_servers_get_equal_shares(maximum):
    plugin = make("max-score-picker", {"maxNumOfEndpoints": maximum})
    assert shares(plugin, [1, 1, 1, 1], of=0) == pytest.approx([0.25] * 4, abs=0.03)


def test_max_score_ties_are_random_among_the_best_only():
    plugin = make("max-score-picker", {"maxNumOfEndpoints": 2})
    assert shares(plugin, [1, 5, 5], of=0) == pytest.approx([0, 0.5, 0.5], abs=0.03)
    assert shares(plugin, [5, 1, 1], of=1) == pytest.approx([0, 0.5, 0.5], abs=0.03)


def test_random_picker_ignores_scores():
    plugin = make("random-picker", {"maxNumOfEndpoints": 2})
    assert shares(plugin, [100, 0, 0, 0], of=0) == pytest.approx([0.25] * 4, abs=0.03)
    assert shares(plugin, [100, 0, 0, 0], of=1) == pytest.approx([0.25] * 4, abs=0.03)


def test_weighted_random_shares_follow_the_scores():
    plugin = make("weighted-random-picker", {"maxNumOfEndpoints": 2})
    assert shares(plugin, [3, 1, 0], of=0) == pytest.approx([0.75, 0.25, 0], abs=0.03)
    # Without replacement: second is what is left, in proportion.
    assert shares(plugin, [2, 1, 1], of=1) == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.03)


def test_weighted_random_without_any_score_is_uniform():
    assert shares(make("weighted-random-picker"), [0, 0, 0, -1], of=0) == pytest.approx([0.25] * 4, abs=0.03)


def test_weighted_random_keeps_proportions_of_tiny_scores():
    assert shares(make("weighted-random-picker"), [3e-9, 1e-9], of=0) == pytest.approx([0.75, 0.25], abs=0.03)


def test_weighted_random_puts_servers_without_score_last():
    plugin = make("weighted-random-picker", {"maxNumOfEndpoints": 4})
    cycle = a_cycle()
    assert all(set(pick(plugin, [0, 1, 0, 1], cycle)[:2]) == {1, 3} for _ in range(200))


def test_single_profile_handler_runs_the_profile_once():
    plugin, cycle, candidates = make("single-profile-handler", {"anything": "goes"}), a_cycle(), pool(size=2)
    assert list(plugin.pick_profiles(cycle, ("default",), {})) == ["default"]
    results = decide(candidates, 1).profiles
    assert list(plugin.pick_profiles(cycle, ("default",), results)) == []
    assert plugin.process_results(cycle, results) == "default"
    assert plugin.process_results(cycle, {"default": None}) is None
    assert list(plugin.pick_profiles(cycle, ("default",), {"default": None})) == []
