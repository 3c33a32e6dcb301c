"""The lab itself: the real picker against simulated engines, in virtual time, the same numbers every time."""

import random
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from epp.config.defaults import DEFAULT_CONFIG
from epp.lab.experiment import (
    Dies,
    Experiment,
    Fails,
    Joins,
    LabResult,
    LabServer,
    Leaves,
    Promised,
    Recovers,
    Restarts,
    Served,
    Slows,
    alike,
)
from epp.lab.workloads.shared import SharedHeads
from epp.lab.workloads.single import Single
from epp.lab.workloads.workload import Clients, Targets, schedule
from epp.lab.world import run
from epp.lab.yardsticks import (
    FEWEST_PREDICTIONS,
    actual_ms,
    answered_rps,
    attainment,
    between,
    coverage,
    percentile,
    relative_errors,
    requests_until_better,
    share,
)
from epp.latency.types import Source, Target
from epp.sim.config import EngineConfig
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG
from epp.sim.engine import Engine
from epp.sim.types import SimRequest
from epp.sim.workload import Lengths

SHORT = Single("short", "", Targets(500.0, 30.0), 10.0, Lengths(5.5, 0.5, 1_000), Lengths(3.0, 0.5, 60))


def lab(
    config: str = PREDICTED_LATENCY_CONFIG,
    *,
    requests=150,
    servers=3,
    workload=SHORT,
    rate_rps=40.0,
    streaming_ratio=0.7,
    engine=None,
    **how,
) -> LabResult:
    clients = Clients(None, streaming_ratio)
    planned = schedule(workload, clients, rate_rps, how.get("seed", 1), requests=requests)
    return run(Experiment(config, alike(servers, engine), planned, **how))


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
    workload = replace(SHORT, prompt=Lengths.exactly(400), output=Lengths.exactly(20))
    engine = EngineConfig(noise_sigma=0.0, overhead_ms=(18.0, 18.0))
    how = {"servers": 1, "requests": 3, "rate_rps": 0.5, "streaming_ratio": 1.0, "engine": engine}
    (served, *_) = lab(workload=workload, **how).served
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


def test_what_runs_on_a_server_that_dies_breaks_off_and_it_comes_back_with_nothing_cached() -> None:
    same = SharedHeads("same", "", Targets(500.0, 30.0), 10.0, (2_000,), 10, Lengths.exactly(40))
    changes = [Dies(2.0, "sim-0"), Restarts(4.0, "sim-0")]
    result = lab(DEFAULT_CONFIG, workload=same, requests=240, servers=1, changes=changes)
    broken = [s for s in result.served if s.status is None]
    assert broken
    assert all(s.at_s < 2.0 and s.ended_s == 2.0 and not s.actual_ms for s in broken)
    assert {s.status for s in between(result.served, 2.0, 4.0)} == {503}
    back = between(result.served, 4.0, 99.0)
    assert {s.status for s in back} == {200}
    assert back[0].cached_tokens == 0
    assert back[-1].cached_tokens == between(result.served, 1.0, 1.5)[0].cached_tokens > 1_900
    assert result.plugin_failures == {}


def test_without_metrics_the_picker_still_knows_what_it_sent() -> None:
    served = lab(DEFAULT_CONFIG, metrics_interval_ms=None).served
    assert {s.status for s in served} == {200}
    assert all(share(served, f"sim-{i}") > 0.1 for i in range(3))


def test_a_request_with_targets_of_its_own_is_measured_by_these() -> None:
    took = {Target.TTFT: 300.0, Target.TPOT: 30.0}
    requests = [
        Served(0, 0.0, "a", status=200, streamed=True, actual_ms=took, targets=own)
        for own in (None, Targets(400.0, 40.0), Targets(400.0, 20.0), Targets(200.0, 40.0))
    ]
    assert [attainment([s], 200.0, 20.0) for s in requests] == [0.0, 1.0, 0.0, 0.0]
    assert [attainment([s], 500.0, 50.0) for s in requests] == [1.0, 1.0, 0.0, 0.0]
    assert [attainment([s], 200.0, None) for s in requests] == [0.0, 1.0, 1.0, 0.0]
    assert [attainment([s], None, 20.0) for s in requests] == [0.0, 1.0, 0.0, 1.0]


def test_yardsticks_count_failures_and_say_nothing_of_nothing() -> None:
    good = Served(0, 0.0, "a", status=200, streamed=True, actual_ms={Target.TTFT: 100.0, Target.TPOT: 10.0})
    late = Served(1, 1.0, "a", status=200, streamed=True, actual_ms={Target.TTFT: 300.0, Target.TPOT: 10.0})
    failed = Served(2, 2.0, "b", status=500, streamed=True)
    assert attainment([good, late, failed], 200.0, 20.0) == pytest.approx(1 / 3)
    assert attainment([good, late, failed], None, 20.0) == pytest.approx(2 / 3)
    assert (attainment([], 200.0, 20.0), percentile([], 0.5)) == (None, None)
    assert coverage([good], Target.TTFT, 0.9) is None
    assert relative_errors([good], Target.TTFT) == []
    assert [percentile(range(1, 101), q) for q in (0.5, 0.99, 1.0)] == [50, 99, 100]


def test_throughput_counts_answers_when_they_end() -> None:
    ends_s = (0.9, 1.0, 1.5, 2.9, 3.0, None)
    served = [Served(number, 0.1, ended_s=end_s, status=200) for number, end_s in enumerate(ends_s)]
    assert answered_rps([*served, Served(9, 0.1, ended_s=2.0, status=503)], 1.0, 3.0) == 1.5


def predicted(source: Source, error_ratio: float, number: int) -> Served:
    promised = {Target.TTFT: Promised(100.0 * (1.0 - error_ratio), {}, source)}
    return Served(number, number / 10, promised=promised, actual_ms={Target.TTFT: 100.0})


@pytest.mark.parametrize(
    ("model_errors", "after"),
    [
        ([0.1] * 60, 20 + FEWEST_PREDICTIONS),
        ([0.8] * FEWEST_PREDICTIONS + [0.1] * 60, 20 + FEWEST_PREDICTIONS + 29),  # 30 · 0.8 + 29 · 0.1 < 59 · 0.46
        ([0.5] * 60, None),
        ([0.1] * (FEWEST_PREDICTIONS - 1), None),
        ([], None),
    ],
    ids=["at once", "later", "never", "too few", "no model"],
)
def test_the_model_beats_its_prior_after_so_many_requests(model_errors: list[float], after: int | None) -> None:
    sources = [(Source.PRIOR, 0.46)] * 20 + [(Source.MODEL, error) for error in model_errors]
    served = [predicted(*one, number) for number, one in enumerate(sources)]
    assert requests_until_better(served, Target.TTFT) == after
    assert requests_until_better(served, Target.TPOT) is None
