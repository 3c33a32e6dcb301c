"""The soonest within its targets is best; noise is no difference; what is not known is neither best nor worst."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_fakes import NONE, cycle_with, headrooms, predicted
from plugin_fakes import a_cycle, make, pool, signals

from epp.scheduling.candidates import Candidates
from epp.scheduling.data import LATENCY_PREDICTION, PREFIX_MATCH, PrefixMatch

LLM_D = {"compatibility": "llm-d"}


def scores(prediction, parameters=None, *, candidates=None, **slow_start):
    candidates = candidates or pool(size=len(prediction.ttft_ms))
    return make("latency-scorer", parameters).score(cycle_with(prediction, **slow_start), candidates).tolist()


# --- no targets -----------------------------------------------------------------------------------------------------


def test_the_lowest_prediction_is_best_and_the_rest_falls_off_smoothly():
    # best 100 ms, tolerance 10 ms: (100 / (100 + excess))²
    assert scores(predicted([100, 205, 410])) == pytest.approx([1, (100 / 195) ** 2, (100 / 400) ** 2])


def test_one_millisecond_is_no_difference():
    assert scores(predicted([100, 101])) == [1, 1]
    assert scores(predicted([100, 101], [20, 20.5])) == [1, 1]


def test_tolerance_is_the_larger_of_share_and_milliseconds():
    assert scores(predicted([10_000, 10_400])) == [1, 1]
    assert scores(predicted([10_000, 10_400]), {"toleranceRatio": 0.0})[1] < 1
    assert scores(predicted([1, 10]), {"ttftToleranceMs": 0})[1] < scores(predicted([1, 10]))[1] == 1


def test_both_dimensions_count_by_weight():
    both = scores(predicted([100, 100], [10, 41]))
    assert both == pytest.approx([1, 0.8 + 0.2 * (10 / 40) ** 2])
    assert scores(predicted([100, 100], [10, 41]), {"tpotWeight": 0}) == [1, 1]
    assert scores(predicted([100, 400], [41, 10]), {"ttftWeight": 0})[0] == pytest.approx(1 / 16)


def test_weights_that_add_up_to_nothing_leave_ttft():
    assert scores(predicted([100, 210], [10, 99]), {"ttftWeight": 0, "tpotWeight": 0}) == pytest.approx([1, 0.25])


# --- targets --------------------------------------------------------------------------------------------------------


def test_who_would_miss_scores_nothing_while_another_would_not():
    assert scores(predicted([100, 300, 900], slo=(500, None)))[2] == 0


def test_without_a_word_the_soonest_within_the_targets_is_best():
    by_default = scores(predicted([100, 480], slo=(500, None)))
    assert by_default[0] == 1 > by_default[1] > 0
    assert by_default == scores(predicted([100, 480], slo=(500, None)), {"headroomSelectionStrategy": "most"})


def test_least_fills_up_the_one_that_just_makes_it():
    least = scores(predicted([100, 480, 900], slo=(500, None)), {"headroomSelectionStrategy": "least"})
    assert least[1] == 1 > least[0] > 0 == least[2]


def test_a_missing_target_is_no_constraint():
    """Only TPOT is asked for: a slow first token is no miss, though sooner is still better."""
    one_target = scores(predicted([9000, 100], [10, 10], slo=(None, 50)))
    assert one_target[1] == 1 > one_target[0] > 0


@pytest.mark.parametrize("strategy", ["least", "most"])
def test_when_all_miss_the_least_bad_wins_whatever_the_strategy(strategy):
    missed = scores(predicted([1010, 1500, 3000], slo=(1000, None)), {"headroomSelectionStrategy": strategy})
    assert missed[0] == 1 > missed[1] > missed[2] > 0


@pytest.mark.parametrize("strategy", ["least", "most"])
def test_equal_misses_are_equal(strategy):
    assert scores(predicted([1500, 1500], slo=(1000, None)), {"headroomSelectionStrategy": strategy}) == [1, 1]


def test_when_all_miss_only_what_is_missed_counts():
    """TTFT is fine on both, TPOT is missed on both: the lower miss wins, though its TTFT is higher."""
    missed = scores(predicted([400, 100], [60, 120], slo=(500, 50)))
    assert missed[0] > missed[1]


# --- not known ------------------------------------------------------------------------------------------------------


def test_a_server_without_a_prediction_is_neither_best_nor_worst():
    best, unknown, worst = scores(predicted([100, NONE, 900]))
    assert best > unknown > worst
    assert unknown == pytest.approx((best + worst) / 2)


def test_predictions_for_other_servers_than_the_candidates_do_no_harm():
    """Predictions for 0 and 1; candidates 1 and 2."""
    candidates = Candidates(pool(size=3).snapshot, np.array([1, 2]))
    assert scores(predicted([100, 100, NONE]), candidates=candidates) == [1, 1]


def test_without_any_prediction_cache_queue_and_prefix_decide():
    candidates = pool(
        signals(kv_cache_usage_ratio=0.5, waiting_requests=4.0), signals(kv_cache_usage_ratio=0.1, waiting_requests=1.0)
    )
    cycle = a_cycle()
    cycle.publish(PREFIX_MATCH.by(None), PrefixMatch(np.array([8.0, 2.0]), 8, 64))
    assert make("latency-scorer").score(cycle, candidates).tolist() == pytest.approx(
        [(0.5 + 0 + 1) / 3, (0.9 + 0.75 + 0.25) / 3]
    )
    weights = {"compositeKVWeight": 0, "compositeQueueWeight": 0, "compositePrefixWeight": 2}
    assert make("latency-scorer", weights).score(cycle, candidates).tolist() == [1, 0.25]
    nothing = {"compositeKVWeight": 0, "compositeQueueWeight": 0, "compositePrefixWeight": 0}
    assert make("latency-scorer", nothing).score(cycle, candidates).tolist() == [0.5, 0.9]
    assert make("latency-scorer", LLM_D).score(cycle, candidates).tolist() == [0.5, 0.63]


def test_without_any_prediction_an_unknown_server_is_not_the_idle_one():
    candidates = pool(signals(kv_cache_usage_ratio=0.2), signals(kv_cache_usage_ratio=0.6), signals())
    first, second, unknown = make("latency-scorer").score(a_cycle(), candidates)
    assert first > unknown > second


def test_without_any_prediction_or_signal_all_are_equal():
    assert len(set(make("latency-scorer").score(a_cycle(), pool(size=3)).tolist())) == 1


# --- new and failing servers ----------------------------------------------------------------------------------------


def test_a_held_back_server_scores_nothing_until_it_is_its_turn():
    prediction = predicted([100, 100, 1])
    assert scores(prediction, held_back=[0, 0, 1]) == [1, 1, 0]
    assert scores(prediction, held_back=[0, 0, 1], turn=2)[:2] == [0, 0]
    assert scores(prediction, held_back=[0, 0, 1], turn=2)[2] > 0


def test_held_back_servers_serve_when_there_are_no_others():
    candidates = Candidates(pool(size=3).snapshot, np.array([1, 2]))
    assert scores(predicted([1, 100, 100]), candidates=candidates, held_back=[0, 1, 1]) == [1, 1]


# --- like llm-d -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "parameters", "expected"),
    [
        # headrooms (TTFT, TPOT); the flat dimension's weight goes to the other
        ([(400, 10), (399, 10)], {}, [0.01, 1.0]),
        ([(400, 10), (399, 10)], {"headroomSelectionStrategy": "most"}, [1.0, 0.01]),
        ([(400, 10), (399, 10)], {"headroomSelectionStrategy": "any text"}, [0.01, 1.0]),
        # 0.8 · 0 + 0.2 · 1 = 0.2, 0.8 · 1 + 0.2 · 0 = 0.8
        ([(100, 30), (200, 10)], {}, [0.81, 0.2]),
        ([(100, 30), (200, 10)], {"ttftWeight": 0, "tpotWeight": 0}, [1.0, 0.01]),
        # a miss scores nothing while there is a hit; both flat: 0.5
        ([(100, 30), (-1, 30)], {}, [0.51, 0.0]),
        # all miss: only TPOT before only TTFT before both
        ([(10, -5), (-5, 10), (-5, -5)], {}, [0.51, 0.0, 0.0]),
        ([(-5, 10), (-5, -5)], {}, [0.51, 0.0]),
        ([(-100, -5), (-200, -5)], {"headroomSelectionStrategy": "most"}, [1.0, 0.01]),
    ],
)
def test_like_llm_d(pairs, parameters, expected):
    assert scores(headrooms(*pairs), LLM_D | parameters) == pytest.approx(expected)


def test_like_llm_d_the_idle_ones_when_all_miss():
    prediction = headrooms((-10, -1), (-500, -1), (-900, -1), requests=[3, 0, 0])
    assert scores(prediction, LLM_D) == pytest.approx([0, 1.0, 0.01])


def test_like_llm_d_no_prediction_is_a_headroom_of_nothing():
    assert scores(predicted([100, NONE], [1, NONE], slo=(500, 50)), LLM_D) == pytest.approx([0.01, 1.0])


# --- in general -----------------------------------------------------------------------------------------------------

MS = st.one_of(st.just(NONE), st.floats(0.1, 1e6))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(MS, MS), min_size=1, max_size=6),
    st.one_of(st.none(), st.floats(1, 1e6)),
    st.one_of(st.none(), st.floats(1, 1e6)),
    st.sampled_from([{}, {"headroomSelectionStrategy": "least"}]),
)
def test_scores_are_numbers_between_0_and_1_and_the_best_is_above_0(rows, ttft_slo, tpot_slo, parameters):
    prediction = predicted([r[0] for r in rows], [r[1] for r in rows], slo=(ttft_slo, tpot_slo))
    result = np.array(scores(prediction, parameters))
    assert ((result >= 0) & (result <= 1 + 1e-12)).all()
    assert result.max() > 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1, 1e5), min_size=2, max_size=6), st.one_of(st.none(), st.floats(1, 1e5)))
def test_a_faster_server_never_scores_lower(ttft, slo):
    result = np.array(scores(predicted(ttft, slo=(slo, None))))[np.argsort(ttft)]
    assert (np.diff(result) <= 1e-12).all()


def test_picked_by_weight_the_best_of_ten_gets_most_and_equals_share_evenly():
    picker = make("weighted-random-picker")

    def shares(ttft):
        candidates, cycle = pool(size=len(ttft)), cycle_with(predicted(ttft))
        totals = make("latency-scorer").score(cycle, candidates)
        picks = Counter(picker.pick(cycle, candidates, totals)[0] for _ in range(2000))
        return [picks[row] / 2000 for row in range(len(ttft))]

    assert shares([100 * i for i in range(1, 11)])[0] > 0.5
    assert all(abs(share - 0.25) < 0.05 for share in shares([100, 101, 102, 103]))


def test_what_it_reads_is_declared():
    named = {"latencyPredictionInfoProducerName": "a", "prefixMatchInfoProducerName": "b"}
    assert make("latency-scorer", named).consumes == (LATENCY_PREDICTION.by("a"), PREFIX_MATCH.by("b"))


def test_predictions_are_told_with_the_headroom_of_each_target_there_is():
    candidates = pool(size=3).intersect([0, 2])
    cycle = cycle_with(predicted([100, 150, 200], [10, 15, 20], slo=(180, None)))
    make("latency-scorer").score(cycle, candidates)
    rows, told = cycle.explanations["", "latency-scorer"]
    assert rows.tolist() == [0, 2]
    assert {name: column.tolist() for name, column in told.items()} == {
        "ttft_ms": [100, 200],
        "tpot_ms": [10, 20],
        "ttft_headroom_ms": [80, -20],
    }
