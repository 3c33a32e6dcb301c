"""What the predicted-latency chain promises, in short runs of the lab. Long ones: `python -m benchmarks.prediction`."""

from statistics import fmean

import pytest

from epp.lab.experiment import Experiment, Fails, Joins, LabResult, LabServer, Slows, alike
from epp.lab.workloads.single import Single
from epp.lab.workloads.workload import Clients, Targets
from epp.lab.workloads.workload import schedule as schedule_of
from epp.lab.world import run
from epp.lab.yardsticks import actual_ms, attainment, between, coverage, mean, percentile, relative_errors, share
from epp.latency.predictor import PredictorOptions
from epp.latency.types import Source, Target
from epp.sim.config import EngineConfig
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG
from epp.sim.timing import HARDWARE
from epp.sim.workload import Lengths

COMPOSITE_CONFIG = PREDICTED_LATENCY_CONFIG.replace(
    "- type: predicted-latency-producer",
    "- type: predicted-latency-producer\n    parameters: {predictInProduce: false}",
)
# Conversations of half the length: as much load, at a third of the work.
WORKLOAD = Single(
    "half", "", Targets(500.0, 30.0), 10.0, Lengths(6.0, 0.985, 8_000), Lengths(4.2, 0.7, 250), 1.09, tells_length=True
)
SOON = PredictorOptions(training_interval_s=5.0)


def schedule(requests: int, rate_rps: float, seed: int = 1, streaming_ratio: float = 0.7):
    return schedule_of(WORKLOAD, Clients(None, streaming_ratio), rate_rps, seed, requests=requests)


def lab(
    requests: int, rate_rps: float, config=PREDICTED_LATENCY_CONFIG, *, servers=None, workload=None, **how
) -> LabResult:
    planned = schedule(requests, rate_rps, how.get("seed", 1), **(workload or {}))
    return run(Experiment(config, servers or alike(3), planned, predictor=SOON, **how))


@pytest.fixture(scope="module")
def steady() -> LabResult:
    """Three servers near 0.8 of what they can do."""
    return lab(1500, 80.0, quantiles=(0.5, 0.9, 0.95))


def test_what_is_promised_is_about_what_comes(steady: LabResult) -> None:
    served = steady.served[400:1350]  # then the pool drains
    assert steady.published_s
    assert any(s.promised[Target.TTFT].source is Source.MODEL for s in served)
    assert mean(relative_errors(served, Target.TTFT)) < 0.22
    assert mean(relative_errors(served, Target.TPOT)) < 0.22
    assert mean(relative_errors(served, Target.E2E)) < 0.25


@pytest.mark.parametrize("target", [Target.TTFT, Target.TPOT])
def test_bounds_cover_what_they_say(steady: LabResult, target: Target) -> None:
    served = steady.served[400:1350]  # then the pool drains
    for quantile, tolerance in ((0.5, 0.08), (0.9, 0.05), (0.95, 0.04)):
        assert coverage(served, target, quantile) == pytest.approx(quantile, abs=tolerance)


def test_the_first_500_requests_fare_no_worse_than_by_the_heuristic() -> None:
    predicted, composite = (lab(500, 90.0, config).served for config in (PREDICTED_LATENCY_CONFIG, COMPOSITE_CONFIG))
    ttft, heuristic_ttft = (actual_ms(served, Target.TTFT) for served in (predicted, composite))
    assert fmean(ttft) <= fmean(heuristic_ttft)
    assert percentile(ttft, 0.99) <= percentile(heuristic_ttft, 0.99)
    assert attainment(predicted, 150.0, 20.0) >= attainment(composite, 150.0, 20.0)


def test_answers_in_one_piece_do_not_look_like_a_queue() -> None:
    half = lab(700, 80.0, workload={"streaming_ratio": 0.5}).served[250:]
    streams = lab(700, 80.0, workload={"streaming_ratio": 1.0}).served[250:]
    assert mean(relative_errors(half, Target.TTFT)) < 1.4 * mean(relative_errors(streams, Target.TTFT))


def test_a_server_that_slows_is_predicted_as_well_again_within_a_minute() -> None:
    result = lab(2000, 28.0, servers=alike(2), changes=[Slows(20.0, "sim-0", 2.0)])
    assert share(between(result.served, 40.0, 65.0), "sim-0") < 0.8 / 2
    for target in (Target.TTFT, Target.TPOT):
        before = mean(relative_errors(between(result.served, 8.0, 20.0), target))
        after = mean(relative_errors(between(result.served, 50.0, 65.0), target))
        assert after <= 1.5 * before
    slowed = [s for s in between(result.served, 50.0, 65.0) if s.server == "sim-0"]
    assert 0.75 < mean(s.actual_ms[Target.TPOT] / s.promised[Target.TPOT].mean_ms for s in slowed if s.streamed) < 1.33


def test_a_server_that_joins_gets_its_share_and_is_not_flooded() -> None:
    served = lab(1300, 70.0, changes=[Joins(4.0, LabServer("new"))]).served
    assert 0 < share(between(served, 4.0, 6.0), "new") < 0.15
    assert 0.15 < share(between(served, 12.0, 18.0), "new") < 0.4


def test_a_server_that_answers_500_in_2_ms_attracts_no_traffic() -> None:
    served = lab(900, 60.0, changes=[Fails(5.0, "sim-0")]).served
    failing = between(served, 5.0, 99.0)
    assert share(between(served, 2.0, 5.0), "sim-0") > 0.2
    assert share(failing, "sim-0") < 0.03
    assert all(s.status == 200 for s in failing if s.server != "sim-0")


def test_older_hardware_gets_what_it_can_do() -> None:
    old = EngineConfig(hardware=HARDWARE["8b-a100"])
    servers = (*alike(2), LabServer("old-0", old), LabServer("old-1", old))
    predicted, composite = (
        lab(1100, 70.0, config, servers=servers).served[400:] for config in (PREDICTED_LATENCY_CONFIG, COMPOSITE_CONFIG)
    )
    assert share(predicted, "old-0") < 0.75 * share(predicted, "sim-0")
    assert fmean(actual_ms(predicted, Target.TTFT)) < 0.9 * fmean(actual_ms(composite, Target.TTFT))
    assert attainment(predicted, 200.0, 20.0) > attainment(composite, 200.0, 20.0)
