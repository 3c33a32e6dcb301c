"""What a request costs in targets kept: itself, those who are there, and those who come after it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins._arrivals import Arrivals
from epp.plugins._company import Company
from epp.plugins._reuse import Reuse
from epp.plugins._slo import Slo
from epp.plugins._targets_at_stake import Prospect, Spreads, look_ahead

SLO = Slo(ttft_ms=1000.0, tpot_ms=25.0)
SPREADS = Spreads(0.1, 0.1)


def prospect(queue_ms, own_ms, tpot_ms):
    """The pool's pace is the mean of its servers'."""
    return Prospect(queue_ms, own_ms, tpot_ms, float(np.mean(tpot_ms)))


def at_stake(slo=SLO, arrivals_per_s=0.0, spreads=SPREADS, reuse_ratio=1.0, **columns):
    """Of servers, two unless a column has more, that are alike but for `columns`: nothing waits, steps take half the
    time allowed, and nobody there is lost."""
    servers = max((np.size(column) for column in columns.values() if np.ndim(column)), default=2)
    alike = {"queue_ms": 50, "own_ms": 100, "tpot_ms": 12, "hopeful": 20, "lost": 0, "used_up": 0.1}

    def of(*names):
        return (np.array(np.broadcast_to(columns.get(n, alike[n]), servers), float) for n in names)

    expected, company = prospect(*of("queue_ms", "own_ms", "tpot_ms")), Company(*of(*Company._fields))
    arrivals = np.full(servers, float(arrivals_per_s))
    return look_ahead(slo, expected, company, spreads, arrivals, reuse_ratio).at_stake.tolist()


@pytest.mark.parametrize("late", [{"queue_ms": (2000, 50)}, {"own_ms": (2000, 100)}, {"tpot_ms": (40, 12)}])
def test_a_target_of_its_own_that_would_be_missed_costs_one_or_more(late):
    missed, kept = at_stake(**late)
    assert kept < 0.15
    assert missed > 1


def test_those_there_cost_as_many_as_would_be_slowed_past_their_target():
    worse, better = at_stake(lost=(12, 0))
    assert worse - better == pytest.approx(12)


def test_a_long_prompt_that_is_late_anywhere_goes_where_those_who_ask_for_it_again_are_in_time():
    room, late = at_stake(own_ms=5000, queue_ms=(50, 5000))
    assert room < late


def test_where_prefixes_are_not_asked_for_again_nobody_follows_a_long_prompt():
    long = {"own_ms": 5000, "queue_ms": (50, 5000)}
    room, late = at_stake(reuse_ratio=0.0, **long)
    assert room == pytest.approx(late, abs=0.01)
    differences = [late - room for room, late in (at_stake(reuse_ratio=r, **long) for r in (0.0, 0.1, 0.2, 0.3, 0.9))]
    assert differences == sorted(differences)


def test_where_many_arrive_what_is_lost_goes_where_everyone_is_late():
    in_time, late = at_stake(own_ms=5000, queue_ms=(50, 5000), arrivals_per_s=10.0)
    assert late < in_time


ONE_LATE_OF_TEN = {"own_ms": 5000, "queue_ms": (2000, *[50] * 9)}


def test_while_the_queues_of_the_pool_are_short_what_is_lost_goes_where_there_is_room():
    """Prefixes that nobody asks for again, and arrivals without end, are no reason to give up a server."""
    late, *room = at_stake(**ONE_LATE_OF_TEN, arrivals_per_s=10.0, reuse_ratio=0.0)
    assert late > max(room) + 1
    late, *room = at_stake(own_ms=5000, queue_ms=(5000, *[700] * 9), arrivals_per_s=10.0, reuse_ratio=0.0)
    assert late < min(room)


@pytest.mark.parametrize(
    ("queue_ms", "expected"), [((50, 50), 0), ((500, 90), 0), ((500, 500), 0.5), ((1300, 100), 1), ((9000, 9000), 1)]
)
def test_overload_goes_by_the_queues_of_the_pool(queue_ms, expected):
    columns = [np.array(column, float) for column in (queue_ms, (100, 100), (12, 12))]
    nobody = Company(*np.zeros((3, 2)))
    outlook = look_ahead(SLO, prospect(*columns), nobody, SPREADS, 0.0, 1.0)
    assert outlook.overload_ratio == pytest.approx(expected)


@pytest.mark.parametrize(("tpot_ms", "expected"), [((24, 12), 0), ((30, 22.5), 0.5), ((80, 20), 1)])
def test_overload_goes_by_the_pace_of_the_pool_where_that_says_more(tpot_ms, expected):
    columns = [np.array(column, float) for column in ((50, 50), (100, 100), tpot_ms)]
    for slo in (SLO, Slo(tpot_ms=25.0)):
        outlook = look_ahead(slo, prospect(*columns), Company(*np.zeros((3, 2))), SPREADS, 0.0, 1.0)
        assert outlook.overload_ratio == pytest.approx(expected)


def test_of_servers_that_keep_everything_the_one_with_more_slack_is_better():
    less, more = at_stake(queue_ms=(300, 50))
    assert more < less < 0.2


def test_a_tenth_of_what_is_used_up_of_the_targets_of_those_there_counts():
    more, less = at_stake(used_up=(6.0, 1.0))
    assert more - less == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("queue_ms", "prices"), [((50, 50), (0.25, 0.25)), ((9000, 9000), (0.25, 0.25)), ((1900, 50), (0.25, 0.65))]
)
def test_each_that_comes_during_its_prefill_counts_a_quarter_and_at_overload_more_if_it_would_be_in_time(
    queue_ms, prices
):
    """Four a second, for half a second; with no overload, at overload with all late, and with one of two late."""
    alike = {"own_ms": 500, "queue_ms": queue_ms}
    added = np.subtract(at_stake(arrivals_per_s=4.0, **alike), at_stake(arrivals_per_s=0.0, **alike))
    assert added == pytest.approx(2 * np.array(prices), abs=0.01)


def test_what_is_not_asked_for_is_not_at_stake():
    late = {"queue_ms": (5000, 50), "tpot_ms": (40, 12)}
    assert at_stake(Slo(tpot_ms=100.0), queue_ms=(5000, 50))[0] == at_stake(Slo(tpot_ms=100.0))[1]
    assert at_stake(Slo(ttft_ms=9000.0), tpot_ms=(40, 12))[0] == at_stake(Slo(ttft_ms=9000.0))[1]
    assert at_stake(SLO, **late)[0] > 1


ANY_MS = st.floats(0, 1e12)


@given(
    st.sampled_from([None, 1e-320, 1.0, 1e8]),
    st.sampled_from([1e-320, 25.0, 1e8]),
    st.lists(ANY_MS, min_size=5, max_size=5),
    st.floats(0, 1e6),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_it_is_a_number_above_0_whatever_is_expected(ttft_ms, tpot_ms, expected, arrivals_per_s, spread, reuse_ratio):
    columns = dict(zip(("queue_ms", "own_ms", "tpot_ms", "lost", "used_up"), expected, strict=True))
    for stake in at_stake(Slo(ttft_ms, tpot_ms), arrivals_per_s, Spreads(spread, spread), reuse_ratio, **columns):
        assert 0 < stake < np.inf


# --- arrivals, reuse --------------------------------------------------------------------------------------------------


ALL = slice(None)


def followed(*endpoint_ids):
    arrivals = Arrivals()
    arrivals.follow(endpoint_ids)
    return arrivals


def test_arrivals_are_counted_per_second_and_old_ones_fade():
    arrivals = followed("a", "b")
    assert arrivals.per_s(ALL).tolist() == [0, 0]
    for number in range(1000):
        arrivals.add(ALL, 2, number * 0.1)
    assert arrivals.per_s(ALL) == pytest.approx([5, 5], rel=0.05)
    for number in range(200):
        arrivals.add(ALL, 2, 100 + number)
    assert arrivals.per_s(ALL) == pytest.approx([0.5, 0.5], rel=0.05)


def test_a_server_has_as_many_arrivals_as_may_go_there():
    """Eight servers; of twenty requests a second a quarter may use only the first two."""
    arrivals = followed(*"abcdefgh")
    for number in range(4000):
        rows, candidates = (np.array([0, 1]), 2) if number % 4 == 0 else (ALL, 8)
        arrivals.add(rows, candidates, number / 20)
    few, all_of_them = 5 / 2, 15 / 8
    assert arrivals.per_s(np.array([1, 7])) == pytest.approx([few + all_of_them, all_of_them], rel=0.05)


def test_arrivals_stay_with_their_servers_when_others_join_and_leave():
    arrivals = followed("a", "b")
    for number in range(1000):
        arrivals.add(np.array([1]), 1, number * 0.1)
    arrivals.follow(("b", "new"))
    assert arrivals.per_s(ALL) == pytest.approx([10, 0], rel=0.05)


def test_a_burst_at_the_start_is_spread_over_some_seconds():
    arrivals = followed("a")
    for _ in range(10):
        arrivals.add(ALL, 1, 3.0)
    assert arrivals.per_s(ALL) == pytest.approx([2.26], abs=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1, 2e6))))
def test_reuse_is_a_share(prompts):
    reuse = Reuse()
    for tokens, cached_tokens in prompts:
        reuse.add(tokens, cached_tokens)
    assert 0 <= reuse.ratio <= 1


def test_prefixes_are_taken_to_be_reused_until_enough_prompts_say_otherwise_and_old_ones_fade():
    reuse = Reuse()
    assert reuse.ratio == 1
    for _ in range(20):
        reuse.add(1000, 0)
    assert reuse.ratio > 0.5
    for _ in range(1000):
        reuse.add(1000, 0)
    assert reuse.ratio < 0.05
    for _ in range(1000):
        reuse.add(1000, 800)
    assert reuse.ratio == pytest.approx(0.8, abs=0.05)
