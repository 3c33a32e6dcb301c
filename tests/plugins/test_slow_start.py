"""New and failing servers are tried, and not flooded."""

import random

import numpy as np
import pytest

from epp.plugins._slow_start import SlowStartTracker

IDS = ("ns/a", "ns/b", "ns/c", "ns/new")
ROWS = np.arange(4)
ROW_BY_ID = {endpoint_id: row for row, endpoint_id in enumerate(IDS)}


def tracker(*, samples=20, failures=3, new_answers=0):
    tracked = SlowStartTracker(samples, failures)
    for endpoint_id in IDS[:3]:
        tracked.add(endpoint_id, samples)
    tracked.add(IDS[3], new_answers)
    return tracked


def good_answer(tracked, endpoint_id, sent_s):
    tracked.answers(endpoint_id, sent_s)
    tracked.answered(endpoint_id, sent_s)


def choose(tracked, *, rows=ROWS, in_flight=(0, 0, 0, 0), now_s=0.0, rng=None):
    return tracked.choose(rows, ROW_BY_ID, np.array(in_flight, dtype=float), now_s, rng or random.Random(1))


def turns(tracked, count=4000, **kwargs):
    rng = random.Random(3)
    return sum(choose(tracked, rng=rng, **kwargs).turn == 3 for _ in range(count)) / count


def test_a_new_server_is_held_back_and_gets_a_tenth_of_a_fair_share():
    tracked = tracker()
    assert choose(tracked).held_back.tolist() == [False, False, False, True]
    assert turns(tracked) == pytest.approx(0.025, abs=0.008)


def test_the_share_grows_with_every_good_answer_to_a_fair_one():
    assert turns(tracker(new_answers=10)) == pytest.approx(0.25 * 0.55, abs=0.02)
    tracked = tracker(new_answers=19)
    assert turns(tracked) == pytest.approx(0.25 * 0.955, abs=0.02)
    good_answer(tracked, "ns/new", 1.0)
    assert choose(tracked) is None


def test_never_more_in_flight_than_it_has_answered_plus_one():
    assert turns(tracker(), in_flight=(0, 0, 0, 1)) == 0
    assert turns(tracker(new_answers=5), in_flight=(0, 0, 0, 5)) > 0
    assert turns(tracker(new_answers=5), in_flight=(0, 0, 0, 6)) == 0


def test_all_new_servers_together_get_no_more_than_half():
    tracked = SlowStartTracker(20, 3)
    tracked.add("ns/a", 20)
    for endpoint_id in IDS[1:]:
        tracked.add(endpoint_id, 19)
    rng = random.Random(5)
    assert sum(choose(tracked, rng=rng).turn is not None for _ in range(2000)) / 2000 == pytest.approx(0.5, abs=0.04)


def test_when_all_candidates_are_new_nobody_is_held_back():
    assert choose(tracker(), rows=np.array([3])) is None


def test_a_failing_server_is_held_back_and_tried_one_request_at_a_time_ever_more_rarely():
    tracked = tracker()
    waits = []
    now_s = 0.0
    for _ in range(3):
        tracked.failed("ns/a", now_s)
    for _ in range(8):
        start_s = now_s
        while choose(tracked, now_s=now_s).turn != 0:
            now_s += 0.25
        assert choose(tracked, now_s=now_s, in_flight=(1, 0, 0, 0)).turn != 0
        waits.append(now_s - start_s)
        tracked.failed("ns/a", now_s)
    assert waits == [1, 2, 4, 8, 16, 16, 16, 16]


def test_a_good_answer_makes_a_failing_server_a_new_one():
    tracked = tracker(samples=2, new_answers=2)
    for _ in range(3):
        tracked.failed("ns/a", 0.0)
    good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked, now_s=99.0, in_flight=(2, 0, 0, 0)).held_back[0]
    good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked) is None


def test_the_first_token_of_a_good_answer_is_a_sign_of_life():
    tracked = tracker(new_answers=20)
    for _ in range(3):
        tracked.failed("ns/a", 0.0)
    assert turns(tracked, 100, now_s=0.5) == 0
    for _ in range(20):
        tracked.answers("ns/a", 1.0)
    assert choose(tracked, now_s=1.1) is None


def test_a_server_that_begins_answers_and_breaks_them_off_is_tried_ever_more_rarely():
    tracked = tracker(new_answers=20)
    for _ in range(5):
        tracked.failed("ns/a", 0.0)
        tracked.answers("ns/a", 0.0)
    tracked.failed("ns/a", 0.0)
    assert choose(tracked, now_s=7.9).turn is None
    assert choose(tracked, now_s=8.0).turn == 0


def test_single_failures_change_nothing():
    tracked = tracker(new_answers=20)
    for _ in range(10):
        tracked.failed("ns/a", 0.0)
        tracked.failed("ns/a", 0.0)
        good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked) is None


def test_both_can_be_switched_off():
    tracked = tracker(samples=0, failures=0)
    for _ in range(10):
        tracked.failed("ns/a", 0.0)
    assert choose(tracked) is None


def test_who_left_is_forgotten_and_unknown_endpoints_change_nothing():
    tracked = tracker()
    assert tracked.keep({"ns/a": 0, "ns/b": 1}) == ["ns/c", "ns/new"]
    tracked.failed("ns/c", 0.0)
    good_answer(tracked, "ns/c", 1.0)
    assert not tracked.knows("ns/c")
    assert choose(tracked) is None


def test_answers_to_requests_from_before_a_failure_do_not_make_up_for_it():
    tracked = tracker(new_answers=20)
    for at_s in (10.0, 10.1, 10.2):
        tracked.failed("ns/a", at_s)
        good_answer(tracked, "ns/a", 9.0)
    assert choose(tracked, now_s=10.3).held_back[0]
