"""Counts of several processes on one page, through their deaths."""

import pickle
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from epp.observe.families import Families
from epp.server.workers.counts import CountReceiver, CountSender

BOUNDS = (0.1, 1.0, 10.0)
VALUES = (0.05, 0.5, 5.0, 50.0)  # one for each bucket


class Process:
    """One process's families."""

    def __init__(self) -> None:
        families = Families(CollectorRegistry())
        self.families = families
        self.requests = families.counter("request", "R.", ("model",))
        self.running = families.gauge("running", "R.", ("model",), adds_up=True)
        self.newest = families.gauge("newest", "N.", ())
        self.seconds = families.histogram("seconds", "S.", BOUNDS, ("model",))
        self.sender = CountSender(families)


@dataclass
class Told:
    """What was counted, as far as it was sent; or by one process since it last sent."""

    requests: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def take(self, other: "Told") -> None:
        for model in self.requests:
            self.requests[model] += other.requests[model]
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]


steps = st.one_of(
    st.tuples(st.just("request"), st.integers(0, 2), st.sampled_from("ab")),
    st.tuples(st.just("end"), st.integers(0, 2), st.sampled_from("ab")),
    st.tuples(st.just("observe"), st.integers(0, 2), st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, 2), st.sampled_from("ab")),
    st.tuples(st.just("send"), st.integers(0, 2), st.just("")),
    st.tuples(st.just("die"), st.integers(0, 2), st.just("")),
)


@settings(max_examples=60)
@given(st.lists(steps, max_size=60))
def test_what_was_sent_is_added_up_and_outlives_its_process(script: list[tuple[str, int, Any]]) -> None:
    parent, workers = Process(), [Process() for _ in range(3)]
    receiver, told, untold = CountReceiver(parent.families), Told(), [Told() for _ in range(3)]

    def send(number: int) -> None:
        receiver.add(number, pickle.loads(pickle.dumps(workers[number].sender.changes())))
        told.take(untold[number])
        untold[number] = Told()

    before = 0.0
    for what, number, value in script:
        worker = workers[number]
        match what:
            case "request":
                worker.requests[value,].inc()
                worker.running[value,].inc()
                untold[number].requests[value] += 1
            case "end":
                worker.running[value,].dec()
            case "observe":
                worker.seconds["a",].observe(VALUES[value])
                untold[number].buckets[value] += 1
            case "forget":  # what was counted under it and not sent is forgotten too
                worker.requests.remove_where(lambda labels, value=value: labels == (value,))
                untold[number].requests[value] = 0
                send(number)
            case "send":
                send(number)
            case "die":
                receiver.gone(number)
                workers[number], untold[number] = Process(), Told()
        now = sum(child.value for child in parent.requests.children.values())
        assert now >= before, "a counter went back"
        before = now
    for number in range(3):
        send(number)
    for model in "ab":
        assert parent.requests[model,].value == told.requests[model]
        assert parent.running[model,].value == sum(worker.running[model,].value for worker in workers)
    assert parent.seconds["a",].counts == told.buckets


def test_only_what_changed_is_sent_and_the_newest_gauge_stands() -> None:
    parent, one, other = Process(), Process(), Process()
    receiver = CountReceiver(parent.families)
    one.newest[()].set(5)
    receiver.add(0, one.sender.changes())
    other.newest[()].set(7)
    receiver.add(1, other.sender.changes())
    assert parent.newest[()].value == 7
    assert one.sender.changes() == []
    one.requests["a",].inc()
    assert [(count.family, count.values) for count in one.sender.changes()] == [("llm_d_epp_request", (1.0,))]


def test_families_that_the_parent_does_not_have_are_left_out() -> None:
    parent, worker = Process(), Process()
    worker.families.counter("newer", "N.", ())[()].inc()
    CountReceiver(parent.families).add(0, worker.sender.changes())
    assert "llm_d_epp_newer" not in parent.families.by_name
