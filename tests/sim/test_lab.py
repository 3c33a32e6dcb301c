"""The lab itself: the real picker against simulated engines, in virtual time, the same numbers every time."""

import random
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from epp.config.defaults import DEFAULT_CONFIG
from epp.latency.types import Target
from epp.sim.config import EngineConfig
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG
from epp.sim.engine import Engine
from epp.sim.experiment import Experiment, Fails, Joins, LabResult, LabServer, Leaves, Recovers, Served, Slows, alike
from epp.sim.lab import run
from epp.sim.types import SimRequest
from epp.sim.workload import WORKLOADS, Lengths, TraceRow, Workload, plan, plan_trace, read_azure_trace
from epp.sim.yardsticks import actual_ms, attainment, between, coverage, percentile, relative_errors, share

SHORT = Workload(rate_rps=40.0, prompt=Lengths(5.5, 0.5, 1_000), output=Lengths(3.0, 0.5, 60))


def lab(
    config: str = PREDICTED_LATENCY_CONFIG, *, requests=150, servers=3, workload=SHORT, engine=None, **how
) -> LabResult:
    schedule = plan(workload, "m", requests, random.Random(how.get("seed", 1)))
    return run(Experiment(config, alike(servers, engine), schedule, **how))


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    first, again, other = (lab(quantiles=(0.9,), seed=seed) for seed in (1, 1, 2))
    assert first.served == again.served
    assert first.served != other.served


def test_every_request_ends_once_and_is_measured() -> None:
    result = lab()
    assert result.plugin_failures == {}
    assert [s.number for s in result.served] == list(range(150))
    for s in result.served:
        assert (s.status, s.server is not None) == (200, True)
        assert s.ended_s is not None
        assert s.ended_s > s.at_s
        assert (Target.TTFT in s.actual_ms) == s.streamed != (Target.E2E in s.actual_ms)
    assert all(a.at_s <= b.at_s for a, b in pairwise(result.served))


def test_an_idle_server_takes_what_its_engine_takes_alone() -> None:
    workload = Workload(
        0.5, Lengths.exactly(400), Lengths.exactly(20), streaming_ratio=1.0, apis=(("completions", 1.0),)
    )
    engine = EngineConfig(noise_sigma=0.0, overhead_ms=(18.0, 18.0))
    (served, *_) = lab(servers=1, requests=3, workload=workload, engine=engine).served
    alone = Engine(engine, random.Random(1))
    alone.submit(SimRequest("a", 400, 20), 0.0)
    times = [event.time_s for event in alone.advance(60.0)]
    assert served.actual_ms[Target.TTFT] == pytest.approx(times[0] * 1e3)
    assert served.actual_ms[Target.TPOT] == pytest.approx((times[-1] - times[0]) * 1e3 / 19)


def test_any_configuration_runs_and_without_a_predicting_plugin_nothing_is_promised() -> None:
    result = lab(DEFAULT_CONFIG)
    assert {s.status for s in result.served} == {200}
    assert not any(s.promised for s in result.served)


def test_a_server_that_slows_is_slower_from_then_on() -> None:
    served = lab(DEFAULT_CONFIG, requests=240, servers=1, changes=[Slows(3.0, "sim-0", 2.0)]).served
    before, after = (fmean(actual_ms(between(served, *span), Target.TPOT)) for span in ((0.0, 2.0), (3.0, 5.0)))
    assert after > 1.8 * before


def test_who_joins_is_used_and_who_leaves_finishes_what_it_has() -> None:
    served = lab(
        DEFAULT_CONFIG, requests=320, servers=2, changes=[Joins(2.0, LabServer("new")), Leaves(4.0, "sim-0")]
    ).served
    assert share(between(served, 0.0, 2.0), "new") == 0
    assert share(between(served, 2.5, 4.0), "new") > 0.2
    assert share(between(served, 4.0, 9.0), "sim-0") == 0
    assert {s.status for s in served} == {200}


def test_a_failing_server_answers_500_until_it_recovers() -> None:
    served = lab(DEFAULT_CONFIG, requests=300, servers=1, changes=[Fails(2.0, "sim-0"), Recovers(4.0, "sim-0")]).served
    for s in served:
        failing = 2.0 <= s.at_s < 4.0
        assert s.status == (500 if failing else 200)
        assert s.actual_ms.keys() == set() or not failing


def test_a_full_server_answers_503() -> None:
    served = lab(DEFAULT_CONFIG, servers=1, engine=EngineConfig(max_sequences=1, max_waiting=1)).served
    assert {200, 503} == {s.status for s in served}


def test_a_trace_gives_times_and_lengths(tmp_path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n2023-11-16 18:16:46.6805900,7,8\n"
    )
    rows = read_azure_trace(trace)
    assert rows[0] == TraceRow(0.0, 374, 44)
    assert rows[1] == TraceRow(pytest.approx(4.314579), 396, 1)
    assert rows[2].at_s == pytest.approx(60.0)
    assert len(read_azure_trace(trace, most=1)) == 1
    workload = replace(WORKLOADS["azure-conv"], streaming_ratio=1.0, apis=(("completions", 1.0),))
    planned = plan_trace(rows, workload, "m", 10.0, random.Random(1))
    assert [p.at_s for p in planned] == pytest.approx([0.0, 0.4314579, 6.0])
    assert b'"max_tokens":44' in planned[0].body


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n"])
def test_what_is_no_trace_is_refused(tmp_path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    if text:
        with pytest.raises(ValueError, match="not of an Azure"):
            read_azure_trace(path)
    else:
        assert read_azure_trace(path) == []


def test_yardsticks_count_failures_and_say_nothing_of_nothing() -> None:
    good = Served(0, 0.0, "a", status=200, streamed=True, actual_ms={Target.TTFT: 100.0, Target.TPOT: 10.0})
    late = Served(1, 1.0, "a", status=200, streamed=True, actual_ms={Target.TTFT: 300.0, Target.TPOT: 10.0})
    failed = Served(2, 2.0, "b", status=500, streamed=True)
    assert attainment([good, late, failed], 200.0, 20.0) == pytest.approx(1 / 3)
    assert (attainment([], 200.0, 20.0), percentile([], 0.5)) == (None, None)
    assert coverage([good], Target.TTFT, 0.9) is None
    assert relative_errors([good], Target.TTFT) == []
    assert [percentile(range(1, 101), q) for q in (0.5, 0.99, 1.0)] == [50, 99, 100]
