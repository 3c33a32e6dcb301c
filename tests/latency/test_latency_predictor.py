import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_world import World, relative_errors, situation

from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.sample_json import from_json, to_json
from epp.latency.training import train
from epp.latency.types import Sample, Source, Target

NAN = math.nan


def trained_predictor(world: World, count: int = 1500) -> Predictor:
    predictor = Predictor()
    world.run(predictor, count)
    job = predictor.training_due(world.now_s)
    assert job is not None
    assert predictor.publish(train(job))
    return predictor


@pytest.fixture(scope="module")
def trained() -> tuple[Predictor, World]:
    world = World()
    return trained_predictor(world), world


@pytest.fixture(scope="module")
def veteran(trained: tuple[Predictor, World]) -> Predictor:
    """Trained; tests only ask it."""
    return trained[0]


@pytest.fixture
def own_veteran(trained: tuple[Predictor, World]) -> tuple[Predictor, World]:
    """The same for those that teach it more."""
    return copy.deepcopy(trained)


def test_a_new_predictor_is_not_ready_but_sensible() -> None:
    predictor = Predictor()
    assert not predictor.ready
    short = predictor.predict(situation(prompt_tokens=10), quantile=0.9)
    long = predictor.predict(situation(prompt_tokens=8000), quantile=0.9)
    assert short.ttft.source is Source.PRIOR
    assert short.model_version == 0
    assert long.ttft.mean_ms[0] > 3 * short.ttft.mean_ms[0]
    assert long.ttft.bound_ms[0] > long.ttft.mean_ms[0]
    assert predictor.model_age_s(5.0) is None


def test_it_is_ready_after_enough_real_samples_and_only_for_what_was_seen() -> None:
    predictor, world = Predictor(PredictorOptions(ready_samples=20)), World()
    world.streaming = False
    world.run(predictor, 19)
    assert not predictor.ready
    world.run(predictor, 1)
    assert predictor.ready
    assert predictor.is_ready(Target.E2E)
    assert not predictor.is_ready(Target.TTFT)


def test_trees_learn_the_bends_that_the_law_has_not() -> None:
    world = World(sigma=0.1)
    predictor = Predictor()
    by_law = world.run(predictor, 2000)[-500:]
    job = predictor.training_due(world.now_s)
    assert job is not None
    trained = train(job)
    assert predictor.publish(trained)
    assert predictor.model_version == 1
    assert predictor.model_age_s(world.now_s + 7.0) == pytest.approx(7.0)
    by_trees = world.run(predictor, 500)
    assert all(s.promise.targets[Target.TPOT].source is Source.MODEL for s in by_trees)
    for target in (Target.TTFT, Target.TPOT):
        assert trained.contests[target].won
        assert np.mean(relative_errors(by_trees, target)) < np.mean(relative_errors(by_law, target))
        assert np.mean(relative_errors(by_trees, target)) < 0.1  # the noise alone makes 0.08


def test_served_bounds_cover_what_they_say(own_veteran: tuple[Predictor, World]) -> None:
    predictor, world = own_veteran
    quantiles = (0.5, 0.9, 0.95)
    for i in range(2400):
        world.step(predictor, quantile=quantiles[i % 3])
    for target in Target:
        coverage = predictor.errors(target).summary().coverage_ratio
        for q in quantiles:
            assert coverage[q] == pytest.approx(q, abs=0.045), target  # of 800 samples


def test_bounds_rise_with_the_quantile(veteran: Predictor) -> None:
    s = World(seed=9).situation()
    bounds = [veteran.predict(s, quantile=q).ttft.bound_ms for q in (0.1, 0.5, 0.9, 0.95, 0.99, 0.999)]
    assert (np.diff(np.array(bounds), axis=0) >= 0).all()
    without = veteran.predict(s)
    assert without.quantile is None
    assert (without.ttft.bound_ms == without.ttft.mean_ms).all()


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, NAN])
def test_what_is_no_quantile_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        Predictor().predict(situation(), quantile=q)


_LOADS = ("uncached_tokens", "in_flight", "prefill")


@given(
    base=st.tuples(st.floats(0, 5000), st.floats(0, 150), st.floats(0, 20_000)),
    which=st.sampled_from(_LOADS),
    more=st.floats(0, 20_000),
)
@settings(max_examples=80, deadline=None)
def test_more_of_what_we_count_is_never_faster(
    veteran: Predictor, base: tuple[float, ...], which: str, more: float
) -> None:
    low = dict(zip(_LOADS, base, strict=True)) | {"prompt_tokens": 30_000.0}
    high = low | {which: low[which] + more}
    a, b = (veteran.predict(situation(max_output_tokens=100.0, **load), e2e=True) for load in (low, high))
    assert a.e2e is not None
    assert b.e2e is not None
    pairs = [(a.ttft, b.ttft), (a.e2e, b.e2e)]
    if which != "uncached_tokens":  # the request's own prefill is over when its TPOT begins
        pairs.append((a.tpot, b.tpot))
    for before, after in pairs:
        assert after.mean_ms[0] >= before.mean_ms[0] * (1 - 1e-5)


def test_loads_never_seen_go_on_rising(veteran: Predictor) -> None:
    tokens = [20_000.0, 100_000.0, 500_000.0]
    ttft = [veteran.predict(situation(prompt_tokens=t)).ttft.mean_ms[0] for t in tokens]
    assert ttft[1] > 3 * ttft[0]
    assert ttft[2] > 3 * ttft[1]


def test_a_row_that_cannot_be_predicted_spoils_no_other(veteran: Predictor) -> None:
    ids = ["a", "b", "c"]
    good = veteran.predict(situation(ids, in_flight=[3, 3, 30]), quantile=0.9)
    bad = veteran.predict(situation(ids, in_flight=[3, NAN, 30], running=[0, NAN, 0], kv=[0.1, 7.0, 0.1]), quantile=0.9)
    assert np.isnan(bad.ttft.mean_ms).tolist() == [False, True, False]
    for row in (0, 2):
        assert bad.ttft.bound_ms[row] == good.ttft.bound_ms[row]
        assert bad.tpot.mean_ms[row] == good.tpot.mean_ms[row]
    assert bad.promise(1).targets == {}


def test_a_server_never_scraped_is_still_predicted(veteran: Predictor) -> None:
    prediction = veteran.predict(situation(waiting=NAN, running=NAN, kv=NAN, in_flight=5), quantile=0.9)
    assert np.isfinite(prediction.ttft.bound_ms).all()
    assert np.isfinite(prediction.tpot.bound_ms).all()


def test_the_order_and_number_of_candidates_change_nothing(veteran: Predictor) -> None:
    world = World([f"pod-{i}" for i in range(150)], seed=2)
    s = world.situation()
    order = world.rng.permutation(150)
    columns = ("is_prefill", "uncached_tokens", "waiting_requests", "running_requests", "kv_cache_usage_ratio")
    columns += ("in_flight_requests", "prefill_tokens_in_flight", "decode_tokens_in_flight")
    shuffled = replace(
        s, endpoint_ids=[s.endpoint_ids[i] for i in order], **{name: getattr(s, name)[order] for name in columns}
    )
    one, other = veteran.predict(s, quantile=0.9, e2e=True), veteran.predict(shuffled, quantile=0.9, e2e=True)
    np.testing.assert_allclose(other.ttft.bound_ms, one.ttft.bound_ms[order], rtol=1e-5)
    np.testing.assert_allclose(other.tpot.mean_ms, one.tpot.mean_ms[order], rtol=1e-5)


def test_features_of_the_decision_are_the_features_of_the_sample(veteran: Predictor) -> None:
    prediction = veteran.predict(situation(["a", "b"], in_flight=[1, 9]))
    promise = prediction.promise(1)
    prediction.features[1] = -1
    assert promise.features[6] == 9


def test_servers_of_other_hardware_are_told_apart() -> None:
    world = World(("fast", "slow"), seed=3)
    world.slow["slow"] = 2.2
    predictor = trained_predictor(world)
    late = world.run(predictor, 600)
    assert np.mean(relative_errors(late, Target.TTFT)) < 0.2
    same = predictor.predict(situation(["fast", "slow"], in_flight=20.0))
    assert same.ttft.mean_ms[1] / same.ttft.mean_ms[0] == pytest.approx(2.2, rel=0.15)


def test_a_server_that_slows_down_is_followed(own_veteran: tuple[Predictor, World]) -> None:
    predictor, world = own_veteran
    before = np.mean(relative_errors(world.run(predictor, 300), Target.TTFT))
    world.slow["b"] = 2.0
    for _ in range(40):
        world.step(predictor, row=1)
    after = [world.step(predictor, row=1) for _ in range(100)]
    assert np.mean(relative_errors(after, Target.TTFT)) < 1.5 * before


def test_a_pool_that_changes_wants_training_soon() -> None:
    options = PredictorOptions(training_interval_s=1000.0, drift_interval_s=1.0)
    world, predictor = World(seed=6), Predictor(options)
    world.run(predictor, 600)
    job = predictor.training_due(world.now_s)
    assert job is not None
    predictor.publish(train(job))
    world.run(predictor, 400)
    assert predictor.training_due(world.now_s) is None
    world.slow = dict.fromkeys(world.ids, 5.0)
    world.run(predictor, 150)
    assert predictor.training_due(world.now_s) is not None


def test_training_is_due_only_on_new_samples_and_not_too_often() -> None:
    world, predictor = World(), Predictor(PredictorOptions(training_min_rows=100, training_min_new=50))
    assert predictor.training_due(0.0) is None
    world.run(predictor, 150)
    assert predictor.training_due(world.now_s) is not None
    assert predictor.training_due(world.now_s + 1000.0) is None  # nothing new
    world.run(predictor, 60)
    assert predictor.training_due(world.now_s) is None  # too soon
    assert predictor.training_due(world.now_s + 30.0) is not None


def test_a_model_that_is_not_better_is_not_served(own_veteran: tuple[Predictor, World]) -> None:
    predictor, world = own_veteran
    world.run(predictor, 300)
    job = predictor.training_due(world.now_s + 100.0)
    assert job is not None
    noise = replace(job.rows, actual_ms=np.random.default_rng(0).lognormal(4, 1, job.rows.actual_ms.shape))
    noise.actual_ms[-300:] = job.rows.actual_ms[-300:]  # the newest rows are real
    nonsense = train(replace(job, rows=noise))
    assert nonsense.model is None or not nonsense.contests[Target.TTFT].won
    stale = train(replace(job, champion_version=0))
    version = predictor.model_version
    assert not predictor.publish(stale)
    assert predictor.model_version == version


def test_what_is_no_measurement_is_counted_and_not_learned() -> None:
    world, predictor = World(), Predictor()
    good = world.step(predictor)
    before = predictor.state(world.now_s)
    for actual in ({}, {Target.TTFT: NAN}, {Target.TTFT: 0.0}, {Target.TTFT: -5.0}, {Target.TPOT: math.inf}):
        predictor.observe(replace(good, actual_ms=actual))
    predictor.observe(replace(good, at_s=NAN))
    after = predictor.state(world.now_s)
    assert after.pop("dropped_samples") == 6
    before.pop("dropped_samples")
    assert after == before


def test_without_a_prediction_there_is_still_something_to_learn(veteran: Predictor) -> None:
    asked = situation(["a", "b"], in_flight=[3, NAN])
    unpredicted, predicted = veteran.without_prediction(asked), veteran.predict(asked)
    assert np.array_equal(unpredicted.features, predicted.features, equal_nan=True)
    promise = unpredicted.promise(0)
    assert promise.targets == {}
    (sample,) = from_json(to_json([Sample("a", promise, 1.0, {Target.TTFT: 70.0})], 1.0), 1.0)  # also elsewhere
    predictor = Predictor()
    for _ in range(predictor.options.ready_samples):
        predictor.observe(sample)
    assert predictor.is_ready(Target.TTFT)
    assert predictor.samples_of("a") == predictor.options.ready_samples
    assert predictor.errors(Target.TTFT).samples_total == 0
    assert predictor.predict(asked).ttft.mean_ms[0] == pytest.approx(70.0, rel=0.1)


def test_new_endpoints_are_known_as_new_and_gone_ones_forgotten() -> None:
    world, predictor = World(("a",)), Predictor(PredictorOptions(max_endpoints=3))
    world.run(predictor, 7)
    assert (predictor.samples_of("a"), predictor.samples_of("b")) == (7, 0)
    predictor.forget("a")
    assert predictor.samples_of("a") == 0
    churn = World([f"pod-{i}" for i in range(50)])
    churn.run(predictor, 200)
    assert len(predictor.state(0.0)["samples_by_endpoint"]) <= 3


def test_the_debug_state_is_plain_json(veteran: Predictor) -> None:
    for predictor in (Predictor(), veteran):
        text = json.dumps(predictor.state(2000.0), allow_nan=False)
        assert "bias_factor" in text
