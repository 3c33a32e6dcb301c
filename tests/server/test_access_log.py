"""Records that are awaited: each request ends once, whatever comes; they are relied on only while they come."""

import logging
from collections import Counter

import pytest
from envoy_messages import log_record
from hypothesis import given, settings
from hypothesis import strategies as st
from picker_in_memory import Clock

from epp.server.access_log.awaiting import (
    FIRST_STREAK,
    FORGIVING,
    LONGEST_STREAK,
    MISSED_REPORTS,
    MOST_ON_TRIAL,
    OVERDUE_S,
    AccessLog,
    promised_interval_s,
    tag_of,
)
from epp.server.access_log.service import MAX_MESSAGE_BYTES, AccessLogService
from epp.wire.access_log import Record

PROMISE = "10s"


class Counted(Counter[str]):
    def awaited_record_came(self) -> None:
        self["came"] += 1

    def awaited_record_is_missing(self) -> None:
        self["missing"] += 1

    def record_is_not_ours(self) -> None:
        self["not ours"] += 1

    def log_message_is_unreadable(self) -> None:
        self["unreadable"] += 1

    def relied_on(self, relied_on: bool) -> None:
        self["relied on"] = int(relied_on)


class Desk:
    """An access log with its clock; `ends` is what requests were told, by name."""

    def __init__(self, tag: str = "me", watched_ratio: float = 0.0) -> None:
        self.clock = Clock()
        self.counted = Counted()
        self.log = AccessLog(
            tag, self.counted, clock=self.clock, call_later=self.clock.call_later, watched_ratio=watched_ratio
        )
        self.ends: dict[str, list[Record | None]] = {}

    def expect(self):
        awaited = self.log.expect(PROMISE)
        assert awaited is not None
        return awaited

    def told(self, awaited):
        self.ends[awaited.name] = []
        return self.ends[awaited.name].append

    def over_with_record(self, number: int = 1) -> None:
        for _ in range(number):
            awaited = self.expect()
            awaited.over()
            assert self.log.deliver(Record(awaited.name, True))

    def relied_on(self) -> "Desk":
        self.over_with_record(FIRST_STREAK)
        assert self.log.relied_on
        return self


def test_records_are_relied_on_once_some_have_come_in_a_row():
    desk = Desk()
    for _ in range(FIRST_STREAK - 1):
        desk.over_with_record()
        assert not desk.log.relied_on
    desk.over_with_record()
    assert desk.log.relied_on
    assert desk.counted == {"came": FIRST_STREAK, "relied on": 1}
    assert desk.clock.pending == 0


def test_a_request_that_was_let_go_is_told_its_record():
    desk = Desk().relied_on()
    awaited = desk.expect()
    awaited.let_go(desk.told(awaited))
    record = Record(awaited.name, True, completion_tokens=5)
    assert desk.log.deliver(record)
    assert desk.ends[awaited.name] == [record]
    assert desk.log.deliver(record)  # a second time: nothing
    assert desk.ends[awaited.name] == [record]
    assert desk.log.awaited == desk.clock.pending == 0


def test_a_record_that_comes_before_the_stream_ends_is_kept_for_it():
    desk = Desk()
    awaited = desk.expect()
    record = Record(awaited.name, True)
    assert desk.log.deliver(record)
    awaited.over(desk.told(awaited))
    assert desk.ends[awaited.name] == [record]
    assert desk.log.awaited == desk.clock.pending == 0


def test_one_that_runs_for_hours_is_kept_as_long_as_envoy_reports_on_it():
    desk = Desk().relied_on()
    awaited = desk.expect()
    awaited.let_go(desk.told(awaited))
    for _ in range(1000):
        desk.clock.advance(10.2)
        assert desk.log.deliver(Record(awaited.name, False))
    assert desk.ends[awaited.name] == []
    desk.clock.advance(MISSED_REPORTS * 10 + 1)
    assert desk.ends[awaited.name] == []
    desk.clock.advance(1.1)
    assert desk.ends[awaited.name] == [None]
    assert not desk.log.relied_on


@pytest.mark.parametrize(
    ("watched_ratio", "says"),
    [
        (0.0, "streamed responses are let go of after their first token"),
        (0.25, "streamed responses are let go of after their first token, but for 25%, which are watched to their end"),
        (1.0, "responses are watched to their end all the same, as --observe-responses 1 says"),
    ],
)
def test_what_is_let_go_of_is_said_when_records_come(watched_ratio, says: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    Desk(watched_ratio=watched_ratio).relied_on()
    assert [record.message for record in caplog.records] == [f"Envoy's access log comes: {says}"]


def test_a_missing_record_ends_reliance_until_twice_as_many_come_in_a_row(caplog: pytest.LogCaptureFixture):
    desk, needed = Desk(), FIRST_STREAK
    while needed < 2 * LONGEST_STREAK:
        desk.over_with_record(min(needed, LONGEST_STREAK))
        assert desk.log.relied_on
        for _ in range(3):  # several of one cause count once
            desk.expect().over()
        caplog.clear()
        desk.clock.advance(max(OVERDUE_S, 61.0))
        assert not desk.log.relied_on
        (line,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert str(min(2 * needed, LONGEST_STREAK)) in line
        needed *= 2
        desk.over_with_record(min(needed, LONGEST_STREAK) - 1)
        assert not desk.log.relied_on
        desk.over_with_record(1)
    desk.over_with_record(FORGIVING * LONGEST_STREAK)
    desk.expect().over()
    desk.clock.advance(OVERDUE_S)
    desk.over_with_record(2 * FIRST_STREAK)
    assert desk.log.relied_on


def test_what_one_missed_is_no_proof_against_the_others_records():
    desk = Desk().relied_on()
    lost, kept = desk.expect(), desk.expect()
    lost.let_go(desk.told(lost))
    desk.clock.advance(20)
    kept.let_go(desk.told(kept))
    desk.clock.advance(13)
    assert (desk.ends[lost.name], desk.ends[kept.name]) == ([None], [])
    desk.log.deliver(Record(kept.name, True))
    assert len(desk.ends[kept.name]) == 1


@pytest.mark.parametrize("request_id", ["me", "me-", "me-x", "me--1", "me-99", "me-²", "", "other-1", "me-1-1", "-1"])
def test_records_of_others_and_of_another_life_are_told_apart(request_id: str):
    desk = Desk()
    awaited = desk.expect()
    assert awaited.name == "me-1"
    assert desk.log.deliver(Record(request_id, True)) is (tag_of(request_id) == "me")
    assert desk.log.awaited == 1


def test_a_tag_may_name_a_process_of_several():
    first, second = Desk("ab.1"), Desk("ab.2")
    awaited = second.expect()
    record = Record(awaited.name, True)
    assert not first.log.deliver(record)
    assert tag_of(awaited.name) == second.log.tag
    assert second.log.deliver(record)


def test_no_more_are_named_than_it_takes_to_find_out_while_nothing_comes():
    desk = Desk()
    named = [desk.log.expect(PROMISE) for _ in range(MOST_ON_TRIAL + 5)]
    assert named[-5:] == [None] * 5
    assert named[MOST_ON_TRIAL - 1] is not None
    named[0].forget()  # type: ignore[union-attr]
    assert desk.log.expect(PROMISE) is not None


def test_what_will_never_come_is_forgotten_without_blame():
    desk = Desk().relied_on()
    awaited = desk.expect()
    awaited.forget()
    awaited.forget()
    desk.clock.advance(100)
    assert desk.log.relied_on
    assert desk.log.awaited == desk.clock.pending == 0


@pytest.mark.parametrize(
    ("promise", "interval_s"),
    [
        ("10s", 10.0),
        ("500ms", 0.5),
        ("1m", 60.0),
        ("0s", None),
        ("-1s", None),
        ("1", None),
        ("x" * 10_000, None),
        ("1h", None),
    ],
)
def test_a_promise_is_a_duration_that_makes_sense(promise: str, interval_s: float | None):
    assert promised_interval_s(promise) == interval_s
    assert (Desk().log.expect(promise) is None) is (interval_s is None)


def test_without_a_promise_nothing_is_awaited():
    assert Desk().log.expect(None) is None


def test_one_end_that_fails_does_not_touch_the_others():
    def explode(_: Record | None) -> None:
        raise ZeroDivisionError

    desk = Desk().relied_on()
    broken, fine, late = desk.expect(), desk.expect(), desk.expect()
    broken.let_go(explode)
    fine.let_go(desk.told(fine))
    late.let_go(explode)
    desk.log.deliver(Record(broken.name, True))
    desk.clock.advance(100)
    assert desk.ends[fine.name] == [None]
    assert desk.log.awaited == desk.clock.pending == 0


def test_thousands_that_end_leave_nothing_behind_while_one_runs_on():
    desk = Desk().relied_on()
    running = desk.expect()
    running.let_go(desk.told(running))
    for _ in range(2_000):
        awaited = desk.expect()
        awaited.let_go(desk.told(awaited))
        desk.log.deliver(Record(awaited.name, True))
    assert len(desk.log._due) < 100
    assert desk.clock.pending == 1


STEPS = st.sampled_from(["expect", "let go", "over", "over and ask", "forget", "record", "report", "wait", "wait long"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 5)), max_size=40))
@settings(deadline=None)
def test_each_request_that_asks_is_told_once_in_any_order_of_events(steps: list[tuple[str, int]]):
    desk = Desk()
    open_, asked = [], []
    everyone = []
    for step, index in steps:
        if step == "wait":
            desk.clock.advance(3.0)
        elif step == "wait long":
            desk.clock.advance(40.0)
        elif step == "expect":
            everyone.append(desk.expect())
            open_.append(everyone[-1])
        elif step in ("record", "report") and everyone:
            desk.log.deliver(Record(everyone[index % len(everyone)].name, step == "record"))
        elif open_:
            awaited = open_.pop(index % len(open_))
            if step == "forget":
                awaited.forget()
            elif step == "over":
                awaited.over()
            else:
                asked.append(awaited)
                (awaited.let_go if step == "let go" else awaited.over)(desk.told(awaited))
        assert all(len(told) <= 1 for told in desk.ends.values())
    for awaited in open_:
        awaited.forget()
    desk.clock.advance(100.0)
    assert all(len(desk.ends[awaited.name]) == 1 for awaited in asked)
    assert desk.log.awaited == desk.clock.pending == 0


# --- the service --------------------------------------------------------------------------------------------------


class Pipe:
    finished = False

    def send(self, replies) -> None:
        raise AssertionError("nothing is ever answered")

    def finish(self) -> None:
        self.finished = True

    def afterwards(self, action) -> None:
        raise AssertionError("records are read at once")


def test_records_reach_those_who_await_them_and_the_rest_is_counted():
    desk = Desk()
    service = AccessLogService(desk.log.deliver, desk.counted)
    reading = service(Pipe())
    awaited = desk.expect()
    awaited.over(desk.told(awaited))
    for data in (log_record(None), log_record("other-1"), b"\xff\xff", b"x" * (MAX_MESSAGE_BYTES + 1)):
        assert reading.receive(data) == []
    assert reading.receive(log_record(awaited.name, completion_tokens=3)) == []
    assert [record and record.completion_tokens for record in desk.ends[awaited.name]] == [3]
    assert desk.counted == {"not ours": 2, "unreadable": 2, "came": 1}
    assert not reading.finished


def test_a_picker_that_is_not_ready_ends_the_log_and_reads_what_has_come():
    desk, ready = Desk(), True
    service = AccessLogService(desk.log.deliver, desk.counted, is_wanted=lambda: ready)
    for ready in (True, False):
        pipe, awaited = Pipe(), desk.expect()
        service(pipe).receive(log_record(awaited.name))
        assert pipe.finished is not ready
    assert desk.counted["came"] == 2


async def test_streams_of_the_log_end_when_the_process_is_to_end():
    service = AccessLogService(Desk().log.deliver, Counted())
    pipes = [Pipe(), Pipe(), Pipe()]
    first, _ = service(pipes[0]), service(pipes[1])
    first.closed(cancelled=True)
    await service.drain(60.0)
    assert [pipe.finished for pipe in pipes] == [False, True, False]
    service(pipes[2])
    assert pipes[2].finished
