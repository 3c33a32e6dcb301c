"""New and failing servers are tried, and not flooded."""

import random

import numpy as np
import pytest

from epp.plugins._slow_start import SlowStartTracker
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals, Snapshot

IDS = ("ns/a", "ns/b", "ns/c", "ns/new")
ROWS = np.arange(4)
ENDPOINTS = tuple(Endpoint("ns", name, f"10.0.0.{row}", 8000) for row, name in enumerate(("a", "b", "c", "new")))


def tracker(*, samples=20, failures=3, new_answers=0):
    tracked = SlowStartTracker(samples, failures)
    for endpoint_id in IDS[:3]:
        tracked.add(endpoint_id, samples)
    tracked.add(IDS[3], new_answers)
    return tracked


def good_answer(tracked, endpoint_id, sent_s):
    tracked.answers(endpoint_id, sent_s)
    tracked.answered(endpoint_id, sent_s)


def fails(tracked, endpoint_id, at_s, sent_s=None):
    return tracked.failed(endpoint_id, at_s if sent_s is None else sent_s, at_s)


def choose(tracked, *, rows=ROWS, in_flight=(0, 0, 0, 0), now_s=0.0, rng=None, pages=True):
    """`pages`: whether metrics pages are read."""
    known = {e.id: EndpointSignals(scraped_at_s=now_s) for e in ENDPOINTS} if pages else {}
    snapshot = Snapshot.build(ENDPOINTS, known)
    return tracked.choose(rows, snapshot, np.array(in_flight, dtype=float), now_s, rng or random.Random(1))


def broken_down(at_s=0.0, *, under_way=3, **kwargs):
    """`ns/a` breaks down with so many requests under way."""
    tracked = tracker(new_answers=20, **kwargs)
    for _ in range(under_way):
        fails(tracked, "ns/a", at_s, at_s - 1.0)
    return tracked


def waited_s(tracked, since_s, until_s=40.0, **kwargs):
    """How long until `ns/a` is tried."""
    later_s = (since_s + quarter / 4 for quarter in range(int(4 * until_s)))
    return next((now_s - since_s for now_s in later_s if turn_of(tracked, now_s=now_s, **kwargs) == 0), None)


def turn_of(tracked, **kwargs):
    slow_start = choose(tracked, **kwargs)
    return None if slow_start is None else slow_start.turn


def back(tracked, at_s):
    """`ns/a` begins and ends enough good answers."""
    for _ in range(20):
        good_answer(tracked, "ns/a", at_s)
    assert choose(tracked, now_s=at_s) is None


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
    tracked = broken_down()
    waits = []
    now_s = 0.0
    for _ in range(8):
        waits.append(waited_s(tracked, now_s))
        now_s += waits[-1]
        assert choose(tracked, now_s=now_s, in_flight=(1, 0, 0, 0)).turn != 0
        fails(tracked, "ns/a", now_s)
    assert waits == [1, 2, 4, 8, 16, 16, 16, 16]


def test_what_was_under_way_at_a_breakdown_is_one_failure():
    tracked = broken_down(under_way=30)
    fails(tracked, "ns/a", 0.5, -9.0)
    assert waited_s(tracked, 0.0) == 1


def test_a_page_that_is_read_again_ends_the_wait_once():
    tracked = broken_down()
    for now_s in (1.0, 3.0, 7.0):
        assert turn_of(tracked, now_s=now_s, pages=False) == 0
        fails(tracked, "ns/a", now_s)
    assert turn_of(tracked, now_s=8.0, pages=False) is None
    assert turn_of(tracked, now_s=8.1) == 0
    fails(tracked, "ns/a", 8.2, 8.1)
    assert turn_of(tracked, now_s=9.0, pages=False) is None
    assert turn_of(tracked, now_s=9.1) is None
    assert waited_s(tracked, 8.2) == pytest.approx(16, abs=0.25)


def test_a_page_that_never_was_silent_or_never_comes_back_says_nothing():
    for pages in (True, False):
        tracked = broken_down()
        fails(tracked, "ns/a", 1.0)
        assert waited_s(tracked, 1.0, pages=pages) == 2


def test_who_had_served_well_competes_as_soon_as_it_answers_with_no_more_in_flight_than_answered_plus_one():
    tracked = broken_down()
    tracked.answers("ns/a", 1.0)
    assert choose(tracked, now_s=1.1, in_flight=(1, 0, 0, 0)) is None
    assert choose(tracked, now_s=1.1, in_flight=(2, 0, 0, 0)).held_back.tolist() == [True, False, False, False]
    for _ in range(9):
        tracked.answers("ns/a", 1.2)
    assert choose(tracked, now_s=1.3, in_flight=(10, 0, 0, 0)) is None
    assert choose(tracked, now_s=1.3, in_flight=(11, 0, 0, 0)).turn is None


def test_who_breaks_down_again_within_a_minute_waits_longer_page_or_not_and_starts_like_a_new_one():
    tracked = broken_down()
    for breaks_down_s, wait_s in ((60.0, 4), (80.0, 16), (100.0, 16)):
        back(tracked, breaks_down_s - 15.0)
        for _ in range(3):
            fails(tracked, "ns/a", breaks_down_s)
        assert turn_of(tracked, now_s=breaks_down_s + 3, pages=False) is None
        assert waited_s(tracked, breaks_down_s) == wait_s
    tracked.answers("ns/a", 116.0)
    rng = random.Random(3)
    assert 0.02 < sum(turn_of(tracked, now_s=117.0, rng=rng) == 0 for _ in range(1000)) / 1000 < 0.06


def test_who_breaks_down_before_its_first_answer_is_not_trusted():
    tracked = tracker()
    for _ in range(3):
        fails(tracked, "ns/new", 100.0)
    assert turn_of(tracked, now_s=101.0) == 3
    fails(tracked, "ns/new", 101.0)
    assert turn_of(tracked, now_s=101.5, pages=False) is None
    assert turn_of(tracked, now_s=101.6) is None
    tracked.answers("ns/new", 103.0)
    assert choose(tracked, now_s=103.1, in_flight=(0, 0, 0, 1)).held_back[3]


def test_a_minute_of_good_service_makes_up_for_earlier_breakdowns():
    tracked = broken_down()
    for lives_since_s, breaks_down_s, wait_s in ((5.0, 10.0, 4), (15.0, 75.0, 1)):
        back(tracked, lives_since_s)
        for _ in range(3):
            fails(tracked, "ns/a", breaks_down_s)
        assert waited_s(tracked, breaks_down_s) == wait_s


def test_when_all_have_broken_down_nobody_is_held_back_nor_preferred_while_they_come_back():
    tracked = broken_down()
    for endpoint_id in IDS[1:]:
        for _ in range(3):
            fails(tracked, endpoint_id, 0.0)
    tracked.answers("ns/a", 1.0)
    assert choose(tracked, now_s=1.1) is None


def test_a_good_answer_makes_a_failing_server_one_that_is_not_flooded():
    tracked = tracker(samples=2, new_answers=2)
    for _ in range(3):
        fails(tracked, "ns/a", 0.0)
    good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked, now_s=99.0, in_flight=(2, 0, 0, 0)).held_back[0]
    good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked) is None


def test_the_first_token_of_a_good_answer_is_a_sign_of_life():
    tracked = tracker(new_answers=20)
    for _ in range(3):
        fails(tracked, "ns/a", 0.0)
    assert turns(tracked, 100, now_s=0.5) == 0
    for _ in range(20):
        tracked.answers("ns/a", 1.0)
    assert choose(tracked, now_s=1.1) is None


def test_a_server_that_begins_answers_and_breaks_them_off_is_tried_ever_more_rarely():
    tracked = broken_down()
    waits = []
    for at_s in (1.0, 2.0, 3.0):
        tracked.answers("ns/a", at_s)
        fails(tracked, "ns/a", at_s)
        waits.append(waited_s(tracked, at_s))
    assert waits == [4, 16, 16]


def test_single_failures_change_nothing():
    tracked = tracker(new_answers=20)
    for _ in range(10):
        fails(tracked, "ns/a", 0.0)
        fails(tracked, "ns/a", 0.0)
        good_answer(tracked, "ns/a", 1.0)
    assert choose(tracked) is None


def test_both_can_be_switched_off():
    tracked = tracker(samples=0, failures=0)
    for _ in range(10):
        fails(tracked, "ns/a", 0.0)
    assert choose(tracked) is None


def test_who_left_is_forgotten_and_unknown_endpoints_change_nothing():
    tracked = tracker()
    assert tracked.keep({"ns/a": 0, "ns/b": 1}) == ["ns/c", "ns/new"]
    fails(tracked, "ns/c", 0.0)
    good_answer(tracked, "ns/c", 1.0)
    assert not tracked.knows("ns/c")
    assert choose(tracked) is None


def test_answers_to_requests_from_before_a_failure_do_not_make_up_for_it():
    tracked = tracker(new_answers=20)
    for at_s in (10.0, 10.1, 10.2):
        fails(tracked, "ns/a", at_s)
        good_answer(tracked, "ns/a", 9.0)
    assert choose(tracked, now_s=10.3).held_back[0]


def test_one_failure_in_a_hundred_is_no_breakdown_where_answers_are_long():
    """Ten requests a second, answers of a minute: none is whole before the next failure, every ten seconds."""
    tracked = tracker(new_answers=20)
    for tenth in range(1, 600):
        if tenth % 100 == 0:
            fails(tracked, "ns/a", tenth / 10)
        else:
            tracked.answers("ns/a", tenth / 10)
        assert choose(tracked, now_s=tenth / 10) is None


def test_first_tokens_between_failures_are_no_pardon_if_they_are_few():
    tracked = tracker(new_answers=20)
    for second in range(1, 4):
        fails(tracked, "ns/a", second)
        if second < 3:
            tracked.answers("ns/a", second + 0.5)
    assert choose(tracked, now_s=3.1).held_back[0]
