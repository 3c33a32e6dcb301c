"""What a request costs in targets kept: itself, those who are there, and those who come after it."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins._arrivals import Arrivals
from epp.plugins._hopes import Hopes
from epp.plugins._reuse import Reuse
from epp.plugins._slo import Slo
from epp.plugins._targets_at_stake import Prospect, Spreads, look_ahead

SLO = Slo(ttft_ms=1000.0, tpot_ms=25.0)
SPREADS = Spreads(0.1, 0.1)


def at_stake(slo=SLO, arrivals_per_s=0.0, spreads=SPREADS, reuse_ratio=1.0, **columns):
    """Of servers, two unless a column has more, that are alike but for `columns`: nothing waits, and steps take half
    the time allowed."""
    servers = max((np.size(column) for column in columns.values() if np.ndim(column)), default=2)
    alike = {"queue_ms": 50, "own_ms": 100, "tpot_ms": 12, "tpot_before_ms": 11.9, "slowdown_ms": 0.1, "hopeful": 20}
    values = {
        name: np.array(np.broadcast_to(columns.get(name, value), servers), float) for name, value in alike.items()
    }
    return look_ahead(slo, Prospect(**values), spreads, arrivals_per_s, reuse_ratio).at_stake.tolist()


@pytest.mark.parametrize("late", [{"queue_ms": (2000, 50)}, {"own_ms": (2000, 100)}, {"tpot_ms": (40, 12)}])
def test_a_target_of_its_own_that_would_be_missed_costs_one_or_more(late):
    missed, kept = at_stake(**late)
    assert kept < 0.15
    assert missed > 1


def test_those_there_cost_as_many_as_would_be_slowed_past_their_target():
    slowed = {"tpot_before_ms": (24, 15), "slowdown_ms": 4}
    worse, better = at_stake(**slowed)
    assert 10 < worse - better < 20


def test_who_waited_too_long_already_has_nothing_to_lose():
    edge = {"tpot_before_ms": 24, "slowdown_ms": 4, "hopeful": (20, 0)}
    hopeful, hopeless = at_stake(**edge)
    assert hopeless < 1 < 10 < hopeful


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
    columns = [np.array(column, float) for column in (queue_ms, (100, 100), (12, 12), (12, 12), (0, 0), (1, 1))]
    outlook = look_ahead(SLO, Prospect(*columns), SPREADS, 0.0, 1.0)
    assert outlook.overload_ratio == pytest.approx(expected)


def test_of_servers_that_keep_everything_the_one_with_more_slack_is_better():
    less, more = at_stake(queue_ms=(300, 50))
    assert more < less < 0.2


def test_what_is_not_asked_for_is_not_at_stake():
    late = {"queue_ms": (5000, 50), "tpot_ms": (40, 12)}
    assert at_stake(Slo(tpot_ms=100.0), queue_ms=(5000, 50))[0] == at_stake(Slo(tpot_ms=100.0))[1]
    assert at_stake(Slo(ttft_ms=9000.0), tpot_ms=(40, 12))[0] == at_stake(Slo(ttft_ms=9000.0))[1]
    assert at_stake(SLO, **late)[0] > 1


ANY_MS = st.floats(0, 1e12)


@given(
    st.sampled_from([None, 1e-320, 1.0, 1e8]),
    st.sampled_from([1e-320, 25.0, 1e8]),
    st.lists(ANY_MS, min_size=6, max_size=6),
    st.floats(0, 1e6),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_it_is_a_number_above_0_whatever_is_expected(ttft_ms, tpot_ms, expected, arrivals_per_s, spread, reuse_ratio):
    columns = dict(zip(Prospect._fields, expected, strict=True))
    for stake in at_stake(Slo(ttft_ms, tpot_ms), arrivals_per_s, Spreads(spread, spread), reuse_ratio, **columns):
        assert 0 < stake < np.inf


# --- hopes, arrivals, reuse -----------------------------------------------------------------------------------------


@dataclass
class _Sent:
    endpoint_id: str
    hope: float
    paced: float


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sent", "sent", "in time", "late", "ended"]),
            st.integers(0, 5),
            st.sampled_from("ab"),
            st.tuples(st.floats(0, 1), st.floats(0, 1)),
        )
    )
)
def test_hopes_are_those_of_the_requests_in_flight(happenings):
    hopes, sent = Hopes(), {}
    for what, request, endpoint_id, (in_time, paced) in happenings:
        match what:
            case "sent":
                hopes.add(str(request), endpoint_id, in_time, paced)
                sent[request] = _Sent(endpoint_id, in_time * paced, paced)
            case "ended":
                hopes.remove(str(request))
                sent.pop(request, None)
            case _:
                hopes.settle(str(request), in_time=what == "in time")
                if request in sent:
                    sent[request].hope = sent[request].paced if what == "in time" else 0.0
        there = [[one.hope for one in sent.values() if one.endpoint_id == e] for e in ("a", "b")]
        assert hopes.shares(("a", "b")) == pytest.approx([sum(at) / len(at) if at else 1 for at in there], abs=1e-9)


def test_arrivals_are_counted_per_second_and_old_ones_fade():
    arrivals = Arrivals()
    assert arrivals.per_s == 0
    for number in range(1000):
        arrivals.add(number * 0.1)
    assert arrivals.per_s == pytest.approx(10, rel=0.05)
    for number in range(200):
        arrivals.add(100 + number)
    assert arrivals.per_s == pytest.approx(1, rel=0.05)


def test_a_burst_at_the_start_is_spread_over_some_seconds():
    arrivals = Arrivals()
    for _ in range(10):
        arrivals.add(3.0)
    assert arrivals.per_s == pytest.approx(2.26, abs=0.01)


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
