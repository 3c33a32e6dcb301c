from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_fakes import FakeRecorder, a_cycle, best, fake, pool, producer, run_once

from epp.scheduling import plugin as roles
from epp.scheduling.data import DataKey, DataKind
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.pipeline import Pipeline, ProducerCycleError, in_data_order
from epp.scheduling.scheduler import Profile, Scheduler

TEXT = DataKind("Text", str, "text-producer")


def key(name: str) -> DataKey[str]:
    return TEXT.by(name)


def pipeline(plugins: Sequence[Any] = (), saturation: Any = None, recorder: Any = None, timer: Any = None) -> Pipeline:
    scheduler = Scheduler(run_once(), [Profile("default", (), (), best())], recorder, timer)
    detector = None
    if saturation is not None:
        detector = fake(roles.SaturationDetector, "detector", saturation=saturation)
    return Pipeline(plugins, scheduler, detector, recorder, timer)


def broken(*_: Any) -> Any:
    raise RuntimeError("a prompt that nobody may read")


def test_no_candidates_is_503_before_any_plugin_runs() -> None:
    plugin = fake(roles.Admitter, "a", admit=broken)
    cycle = a_cycle()
    assert pipeline([plugin]).decide(cycle, pool(0)) == Denial.no_endpoints(
        "failed to find endpoint candidates for serving the request"
    )
    assert cycle.notes == {}


def test_every_screener_sees_all_candidates_and_results_are_intersected() -> None:
    seen: list[int] = []

    def keeping(*rows: int) -> Any:
        def screen(cycle: Any, candidates: Any) -> Any:
            seen.append(len(candidates))
            return candidates.intersect(rows)

        return fake(roles.Screener, f"keep-{rows}", screen=screen)

    decision = pipeline([keeping(0, 1, 2), keeping(1, 2, 3)]).decide(a_cycle(), pool(4))
    assert isinstance(decision, Decision)
    assert {e.name for e in decision.endpoints} == {"pod-1", "pod-2"}
    assert seen == [4, 4]


def test_screeners_that_leave_nobody_are_a_503() -> None:
    screeners = [fake(roles.Screener, f"s{i}", screen=lambda _, c, i=i: c.intersect([i])) for i in (0, 1)]
    denial = pipeline(screeners).decide(a_cycle(), pool(3))
    assert denial == Denial.no_endpoints("screeners eliminated all endpoint candidates")


def test_a_broken_screener_passes_everything() -> None:
    decision = pipeline([fake(roles.Screener, "s", screen=broken)]).decide(a_cycle(), pool(3))
    assert isinstance(decision, Decision)
    assert len(decision.endpoints) == 3


@pytest.mark.parametrize(
    ("priority", "saturation", "shed"),
    [(-1, 1.0, True), (-1, 7.0, True), (-1, 0.99, False), (-1, float("nan"), False), (0, 9.0, False), (5, 9.0, False)],
)
def test_only_negative_priority_is_shed_and_only_when_full(priority: int, saturation: float, shed: bool) -> None:
    result = pipeline(saturation=lambda candidates, now_s: saturation).decide(a_cycle(priority), pool(2))
    expected = Denial("ResourceExhausted", 429, "system saturated, sheddable request dropped", "rejected-saturated", 1)
    assert (result == expected) is shed


def test_a_request_that_is_shed_costs_no_producer() -> None:
    ran: list[str] = []
    plugins = [producer("p", lambda cycle, candidates: ran.append("p"))]
    pipeline(plugins, saturation=lambda *_: 1.0).decide(a_cycle(-1), pool(2))
    assert ran == []


def test_a_broken_detector_sheds_nobody() -> None:
    cycle = a_cycle(-1)
    assert isinstance(pipeline(saturation=broken).decide(cycle, pool(2)), Decision)
    assert cycle.notes == {"detector": "Admission failed: RuntimeError"}


def test_first_denial_of_the_admitters_wins_and_a_broken_one_lets_through() -> None:
    denials = [Denial.saturated("first"), Denial.saturated("second")]
    admitters = [
        fake(roles.Admitter, "broken", admit=broken),
        fake(roles.Admitter, "yes", admit=lambda *_: None),
        *(fake(roles.Admitter, d.message, admit=lambda *_, d=d: d) for d in denials),
    ]
    assert pipeline(admitters).decide(a_cycle(), pool(2)) == denials[0]
    assert isinstance(pipeline(admitters[:2]).decide(a_cycle(), pool(2)), Decision)


def test_first_denial_of_the_request_processors_wins() -> None:
    bad = Denial.bad_request("no")
    processors = [
        fake(roles.RequestProcessor, "broken", process_request=broken),
        fake(roles.RequestProcessor, "no", process_request=lambda cycle: bad),
    ]
    assert pipeline(processors).process_request(a_cycle()) == bad
    assert pipeline(processors[:1]).process_request(a_cycle()) is None


def test_producers_run_after_those_they_read_from_whatever_the_order_of_the_file() -> None:
    reader = producer(
        "reader", lambda c, _: c.publish(key("b"), f"{c.get(key('a'))}!"), [key("b")], consumes=[key("a")]
    )
    writer = producer("writer", lambda c, _: c.publish(key("a"), "hi"), [key("a")])
    cycle = a_cycle()
    pipeline([reader, writer]).decide(cycle, pool(1))
    assert cycle.get(key("b")) == "hi!"


def test_a_broken_producer_costs_only_its_own_data() -> None:
    recorder, cycle = FakeRecorder(), a_cycle()
    seen: list[str | None] = []
    plugins = [
        producer("broken", broken, [key("a")]),
        producer("dependent", lambda c, _: seen.append(c.get(key("a"))), [key("b")], consumes=[key("a")]),
        producer("other", lambda c, _: c.publish(key("c"), "c"), [key("c")]),
    ]
    decision = pipeline(plugins, recorder=recorder).decide(cycle, pool(1))
    assert isinstance(decision, Decision)
    assert seen == [None]
    assert cycle.get(key("c")) == "c"
    assert recorder.failures == [("DataProducer", "broken", "RuntimeError")]
    assert cycle.notes == {"broken": "DataProducer failed: RuntimeError"}


def test_producers_in_a_circle_are_named() -> None:
    plugins = [
        producer("free", broken),
        producer("a", broken, [key("a")], [key("b")]),
        producer("b", broken, [key("b")], [key("a")]),
    ]
    with pytest.raises(ProducerCycleError, match="a → b → a"):
        in_data_order(plugins)


@settings(max_examples=100, deadline=None)
@given(edges=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda e: e[0] < e[1])), data=st.data())
def test_data_order_keeps_every_dependency_and_without_any_the_given_order(edges: Any, data: Any) -> None:
    producers = [
        producer(f"p{i}", broken, [key(f"k{i}")], [key(f"k{a}") for a, b in sorted(edges) if b == i]) for i in range(8)
    ]
    shuffled = data.draw(st.permutations(producers))
    at = {p.name: i for i, p in enumerate(in_data_order(shuffled))}
    assert len(at) == 8
    assert all(at[f"p{a}"] < at[f"p{b}"] for a, b in edges)
    if not edges:
        assert in_data_order(shuffled) == shuffled


HOOKS = {
    roles.PreRequest: ("pre_request", (None,), "PreRequest"),
    roles.ResponseHeadersHook: ("response_headers", (None, 200, {}, None), "ResponseReceived"),
    roles.FirstTokenHook: ("first_token", (None, 1.0), "FirstToken"),
    roles.ResponseChunkHook: ("response_chunk", (None, b"x", 1.0), "ResponseStreaming"),
    roles.EndHook: ("end", (None, None), "ResponseComplete"),
}


@pytest.mark.parametrize("role", HOOKS, ids=lambda role: role.__name__)
def test_one_hook_that_raises_hides_no_other_and_order_is_the_files(role: Any) -> None:
    method, args, point = HOOKS[role]
    ran: list[str] = []

    def note(name: str) -> Any:
        return fake(role, name, **{method: lambda *_: ran.append(name)})

    recorder, cycle, ticks = FakeRecorder(), a_cycle(), iter(range(100))
    plugins = [note("z"), fake(role, "broken", **{method: broken}), note("a")]
    line = pipeline(plugins, recorder=recorder, timer=lambda: float(next(ticks)))
    getattr(line, method)(cycle, *args)
    assert ran == ["z", "a"]
    assert recorder.failures == [(point, "broken", "RuntimeError")]
    assert cycle.notes == {"broken": f"{point} failed: RuntimeError"}
    assert recorder.calls == [(point, "z", 1.0), (point, "broken", 1.0), (point, "a", 1.0)]


def test_chunks_are_observed_only_if_somebody_asks() -> None:
    assert not pipeline().observes_chunks
    assert pipeline([fake(roles.ResponseChunkHook, "c", response_chunk=broken)]).observes_chunks
