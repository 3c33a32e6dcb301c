"""How far answers have come, told from when they began and at what pace their server goes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins._progress import Hope, Progress

ROWS = np.arange(2)


def servers(names=("a", "b")):
    progress = Progress()
    progress.follow(names)
    return progress


def ticked(progress, now_s, step_ms=(10.0, 20.0), requests=(1.0, 1.0), context=(100.0, 100.0)):
    progress.tick(slice(None), *(np.array(column) for column in (step_ms, requests, context)), now_s)


def sent(
    progress, request_id, endpoint_id, at_s, prefill_ms=0.0, in_time=0.9, deadline_s=np.inf, tpot_target_ms=np.inf
):
    progress.add(request_id, endpoint_id, Hope(in_time, deadline_s, tpot_target_ms), prefill_ms, prefill_ms, at_s)


def begun(progress, endpoint_id, at_s, request_id="r", prefill_ms=0.0):
    sent(progress, request_id, endpoint_id, at_s, prefill_ms)
    progress.first_token(request_id, at_s)


def test_an_answer_has_a_token_for_each_step_since_its_first():
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "a", 0.5, "r")
    begun(progress, "b", 0.5, "s")
    ticked(progress, 1.0)
    ticked(progress, 1.5)
    there = progress.in_flight(ROWS, True, 1.5)
    assert there.tokens.tolist() == pytest.approx([100, 50])
    assert there.elapsed_ms.tolist() == pytest.approx([1000, 1000])
    assert there.candidate.tolist() == [0, 1]


def test_no_tokens_are_made_while_a_prompt_is_computed():
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "a", 0.0)
    begun(progress, "a", 0.8, "long", prefill_ms=600.0)
    ticked(progress, 1.0)
    assert progress.in_flight(ROWS, True, 1.0).tokens[0] == pytest.approx(40)


def test_who_waits_has_no_tokens_and_the_hope_it_came_with():
    progress = servers()
    ticked(progress, 0.0)
    sent(progress, "r", "b", 0.0, 30.0, 0.7, deadline_s=5.0)
    ticked(progress, 1.0)
    there = progress.in_flight(ROWS, True, 1.0)
    assert (there.tokens[0], there.elapsed_ms[0], there.waits[0], there.hope[0]) == (0, 0, 1, 0.7)
    assert progress.in_flight(ROWS, True, 5.1).hope[0] == 0
    progress.first_token("r", 1.0)
    assert progress.in_flight(ROWS, True, 5.1).hope[0] == 1


def test_the_life_of_an_answer_is_what_was_there_on_average_over_its_tokens():
    """One second of 100 steps among 3, one of 50 steps among 9, and at its end a prompt of 300 ms, for which 15 of
    these were not made; there it counts as one more."""
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "a", 0.0)
    ticked(progress, 1.0, (10.0, 20.0), (3.0, 0.0), (600.0, 0.0))
    ticked(progress, 2.0, (20.0, 20.0), (9.0, 0.0), (1800.0, 0.0))
    begun(progress, "a", 2.0, "other", prefill_ms=300.0)
    life = progress.end("r", 2.0, tokens=135)
    assert life.requests == pytest.approx((100 * 3 + 50 * 9 - 15 * 10) / 135)
    assert life.context_tokens == pytest.approx((100 * 600 + 35 * 1800) / 135)
    assert life.prefill_ms == pytest.approx(300 / 135)


def test_nothing_is_said_of_the_life_of_who_has_not_begun_or_whose_server_has_left():
    progress = servers()
    ticked(progress, 0.0)
    sent(progress, "waits", "a", 0.0)
    begun(progress, "b", 0.0, "left")
    progress.follow(("a",))
    progress.tick(slice(None), np.array([10.0]), np.array([1.0]), np.array([1.0]), 1.0)
    assert progress.in_flight(np.arange(1), True, 1.0).candidate.tolist() == [0]
    assert progress.requests == 2
    assert [progress.end(request, 1.0, 10) for request in ("waits", "left", "unknown")] == [None] * 3
    assert progress.requests == 0


def test_what_is_known_of_a_server_moves_with_it():
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "b", 0.0)
    progress.follow(("b", "c", "a"))
    progress.tick(slice(None), np.full(3, 20.0), np.ones(3), np.ones(3), 1.0)
    there = progress.in_flight(np.arange(3), True, 1.0)
    assert (there.candidate.tolist(), there.tokens.tolist()) == ([0], [50])


def test_the_share_of_prefill_is_that_of_late():
    progress = servers()
    for number in range(40):
        sent(progress, str(number), "a", number * 0.5, 100.0)
    a, b = progress.prefill_ratios(ROWS, 20.0)
    assert a == pytest.approx(0.2, rel=0.15)
    assert b == 0
    assert progress.prefill_ratios(ROWS, 60.0)[0] < 0.001


def test_a_first_token_long_after_the_last_look_begins_then():
    """Between two decisions, of which the second finds the server slower."""
    progress = servers()
    ticked(progress, 0.0)
    sent(progress, "r", "a", 0.0)
    progress.first_token("r", 50.0)
    ticked(progress, 60.0, (20.0, 20.0))
    assert progress.in_flight(ROWS, True, 60.0).tokens[0] == pytest.approx(500)


def test_where_estimates_cancel_each_other_what_is_there_now_is_the_life_of_an_answer():
    """By its estimates the server made 100 steps, but for a prompt as long as 99 of them."""
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "a", 0.0)
    ticked(progress, 1.0, requests=(9.0, 1.0))
    begun(progress, "a", 1.0, "long", prefill_ms=990.0)
    assert progress.end("r", 1.0, tokens=100) == (10, 100, pytest.approx(9.9))


def test_an_answer_of_a_server_that_left_and_is_back_counts_anew_and_teaches_nothing():
    progress = servers()
    ticked(progress, 0.0)
    begun(progress, "b", 0.0)
    ticked(progress, 5.0)
    progress.follow(("a",))
    progress.follow(("a", "b"))
    ticked(progress, 6.0)
    ticked(progress, 7.0)
    assert progress.in_flight(ROWS, True, 7.0).tokens[0] == pytest.approx(50)
    assert progress.end("r", 7.0, tokens=50) is None


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "sent", "sent", "begun", "ended", "pool"]),
        st.integers(0, 99),
        st.sampled_from("abc"),
        st.sampled_from([("a", "b"), ("b", "c", "a"), ("c",)]),
    ),
    max_size=200,
)


@given(EVENTS)
def test_those_in_flight_are_those_that_were_sent_and_have_not_ended(events):
    progress, names, there_are = servers(), ("a", "b"), {}
    for at, (what, number, endpoint_id, pool) in enumerate(events):
        request_id = str(number)
        if what == "sent":
            sent(progress, request_id, endpoint_id, float(at), 5.0, number / 100)
            there_are[request_id] = endpoint_id, number / 100
        elif what == "begun":
            progress.first_token(request_id, float(at))
            if request_id in there_are:
                there_are[request_id] = there_are[request_id][0], 1.0
        elif what == "ended":
            progress.end(request_id, float(at), 10.0)
            there_are.pop(request_id, None)
        else:
            names = pool
            progress.follow(names)
        progress.tick(slice(None), *np.ones((3, len(names))), float(at))
        assert progress.requests == len(there_are)
        for rows in (np.arange(len(names)), np.arange(1)):
            there = progress.in_flight(rows, len(rows) == len(names), float(at))
            expected = sorted((names.index(e), hope) for e, hope in there_are.values() if e in names[: len(rows)])
            assert sorted(zip(there.candidate.tolist(), there.hope.tolist(), strict=True)) == expected
            assert np.isfinite(there.tokens).all()


def test_a_prompt_that_was_given_up_or_refused_takes_no_time_from_the_others():
    progress = servers()
    ticked(progress, 0.0)
    sent(progress, "kept", "a", 1.0, prefill_ms=100.0)
    alone = progress.prefill_ratios(slice(None), 2.0)[0]
    sent(progress, "refused", "a", 1.5, prefill_ms=60_000.0)
    progress.end("refused", 1.6, tokens=0.0)
    sent(progress, "moved", "a", 1.7, prefill_ms=60_000.0)
    progress.forget("moved")
    assert progress.prefill_ratios(slice(None), 2.0)[0] == pytest.approx(alone, rel=1e-6)
    assert progress.requests == 1
