"""Who can still keep a target, and who no longer would beside a newcomer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins._company import Pace, company_of
from epp.plugins._progress import InFlight

TARGET_MS, MEAN_TOKENS = 20.0, 200.0
SECONDS = st.floats(0, 1e9)


def company(
    answers, *, target_ms=TARGET_MS, their_target_ms=None, requests=None, spread=0.1, new_tokens=MEAN_TOKENS, **pace
):
    """`answers`: one tuple of milliseconds and tokens since the first, or `None` for who waits, on one server.
    `target_ms` is the newcomer's, and that of all unless `their_target_ms` is another."""
    waits = np.array([float(answer is None) for answer in answers])
    elapsed_ms, tokens = np.array([answer or (0.0, 0.0) for answer in answers], float).reshape(-1, 2).T
    theirs = their_target_ms or target_ms or np.inf
    candidate, hope = np.zeros(len(answers), dtype=np.intp), np.ones(len(answers))
    there = InFlight(candidate, elapsed_ms, tokens, waits, hope, np.full(len(answers), theirs))
    alike = {"token_ms": 15.0, "more_ms": 0.0, "backlog_ms": 0.0, "own_ms": 0.0, "prompt_token_ms": 0.02}
    values = {**alike, "requests": len(answers) if requests is None else requests, **pace}
    columns = Pace(**{name: np.array([value], float) for name, value in values.items()})
    return [float(column[0]) for column in company_of(there, columns, target_ms, spread, MEAN_TOKENS, new_tokens)]


def test_who_was_slow_for_long_is_lost_though_its_server_is_fast_now():
    hopeful, lost, _ = company([(4500.0, 150.0)], more_ms=1.0)
    assert hopeful < 0.15
    assert lost < 0.1


def test_who_was_fast_can_bear_a_slow_stretch_and_who_has_only_begun_cannot():
    slow = {"token_ms": 24.0}
    fast, new = company([(1500.0, 150.0)], **slow)[0], company([(0.0, 0.0)], **slow)[0]
    assert fast > 0.8 > 0.2 > new


def test_who_is_nearly_done_is_hardly_slowed_down():
    at_the_edge = {"token_ms": 19.0, "more_ms": 2.0}
    nearly, new = company([(3420.0, 180.0)], **at_the_edge)[1], company([(0.0, 0.0)], **at_the_edge)[1]
    assert nearly < 0.2 * new
    assert new > 0.2


def test_a_long_prompt_costs_those_who_are_at_the_edge():
    assert company([(0.0, 0.0)] * 10, token_ms=19.0, own_ms=1000.0)[1] > 3
    assert company([(0.0, 0.0)] * 10, token_ms=10.0, own_ms=1000.0)[1] < 0.5


def test_nobody_waits_for_more_of_a_prompt_than_fits_into_the_steps_that_he_has_left():
    """20 tokens are left at least, and a step has no more than 8,192 of a prompt's tokens."""
    short, long = (company([(3600.0, 190.0)], own_ms=own_ms)[1] for own_ms in (3_277.0, 1e9))
    assert short == pytest.approx(long, rel=0.01)


def test_those_of_other_processes_count_as_ours_do():
    ours, theirs = company([(0.0, 0.0)] * 10, more_ms=1.0), company([], requests=10, more_ms=1.0)
    assert ours == pytest.approx(theirs)
    assert ours[0] > 5
    assert company([(0.0, 0.0)] * 5, requests=10, more_ms=1.0) == pytest.approx(ours)


def test_who_was_moved_to_another_server_does_not_count_here():
    all_here, hopeful = company([(0.0, 0.0)] * 10)[0], company([(0.0, 0.0)] * 10, requests=4)[0]
    assert hopeful == pytest.approx(0.4 * all_here)


def test_a_short_answer_slows_nobody_for_long():
    at_the_edge = {"token_ms": 19.0, "more_ms": 2.0}
    assert company([(0.0, 0.0)], new_tokens=1.0, **at_the_edge)[1] < 0.1 * company([(0.0, 0.0)], **at_the_edge)[1]


def test_without_a_target_of_pace_the_first_token_alone_counts():
    assert company([(9e9, 1.0), None], target_ms=None) == [2.0, 0.0, 0.0]


@pytest.mark.parametrize("newcomers_ms", [None, 8.0, 150.0])
def test_each_is_held_to_a_target_of_its_own(newcomers_ms):
    """A batch that bears much comes to chats that do not; and a hurried one to those who do."""
    alike = {"token_ms": 15.0, "own_ms": 3000.0}
    chats = company([(0.0, 0.0)] * 10, target_ms=newcomers_ms, their_target_ms=20.0, **alike)
    assert chats == company([(0.0, 0.0)] * 10, target_ms=20.0, **alike)
    assert chats[1] > 3
    patient = company([(0.0, 0.0)] * 10, target_ms=newcomers_ms, their_target_ms=1000.0, **alike)
    assert patient[0] == pytest.approx(10, rel=0.01)
    assert patient[1] < 0.1


def test_who_waits_is_in_the_midst_of_the_queue_and_waits_for_half_of_it():
    """Who has begun waits for all of it."""
    waiting, begun = company([None], backlog_ms=1500.0), company([(0.0, 0.0)], backlog_ms=1500.0)
    assert waiting == pytest.approx(company([(0.0, 0.0)], backlog_ms=750.0))
    assert waiting[0] > begun[0] + 0.2


def test_of_answers_that_last_for_long_less_is_sure():
    """All are a tenth faster than their targets, over answers of 4, 20 and 200 seconds."""
    short, long, longest = (
        company([(0.0, 0.0)], target_ms=target_ms, token_ms=0.9 * target_ms, spread=0.01)[0]
        for target_ms in (20.0, 100.0, 1000.0)
    )
    assert short > long + 0.05
    assert long == pytest.approx(longest)  # but not ever less


@given(
    st.lists(st.tuples(SECONDS, SECONDS) | st.none(), max_size=5),
    st.sampled_from([1e-320, 1.0, 25.0, 1e8]),
    st.floats(0, 10),
    st.lists(SECONDS, min_size=5, max_size=5),
)
def test_no_more_are_lost_than_can_keep_their_targets(answers, target_ms, spread, values):
    pace = dict(zip(Pace._fields, values, strict=False))
    hopeful, lost, used_up = company(answers, target_ms=target_ms, spread=spread, requests=7, **pace)
    assert 0 <= lost <= hopeful + 1e-9
    assert hopeful <= 7 + 1e-9
    assert 0 <= used_up <= hopeful + 1e-9
