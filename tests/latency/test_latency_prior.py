import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_world import World, situation

from epp.latency.features import feature_matrix
from epp.latency.prior import LAWS, Prior
from epp.latency.types import Target


def ttft_of(prior: Prior, **kwargs: object) -> float:
    return float(prior.freeze().predict(feature_matrix(situation(**kwargs)))[Target.TTFT][0])  # type: ignore[arg-type]


def test_before_any_sample_a_long_prompt_takes_longer() -> None:
    prior = Prior()
    assert ttft_of(prior, prompt_tokens=10) == pytest.approx(28.0 + 10 * 0.0185)
    assert ttft_of(prior, prompt_tokens=8000) == pytest.approx(28.0 + 8000 * 0.0185)


def test_the_coefficients_of_a_linear_world_are_found() -> None:
    prior = Prior()
    rng = np.random.default_rng(0)
    for _ in range(800):
        tokens, before, active = rng.integers(10, 4000), rng.integers(0, 4000), rng.integers(0, 100)
        row = feature_matrix(situation(prompt_tokens=float(tokens), prefill=float(before), in_flight=float(active)))[0]
        ttft = (60.0 + 0.05 * tokens + 0.03 * before + 0.4 * active) * rng.lognormal(0, 0.05)
        prior.learn(row, {Target.TTFT: ttft, Target.TPOT: 20.0 + 0.2 * active})
    found = prior.coefficients()
    assert found["ttft"]["uncached_tokens"] == pytest.approx(0.05, rel=0.1)
    assert found["ttft"]["prefill_tokens_before"] == pytest.approx(0.03, rel=0.15)
    assert found["tpot"]["base"] == pytest.approx(20.0, rel=0.05)
    assert found["tpot"]["active_requests"] == pytest.approx(0.2, rel=0.1)
    # Beyond what was seen, too.
    assert ttft_of(prior, prompt_tokens=20_000, in_flight=50.0) == pytest.approx(60.0 + 1000.0 + 20.0, rel=0.05)


def test_outliers_do_not_carry_the_law_away() -> None:
    prior = Prior()
    rng = np.random.default_rng(0)
    for i in range(400):
        row = feature_matrix(situation(prompt_tokens=float(rng.integers(10, 4000))))[0]
        clean = 28.0 + 0.0185 * row[0]
        prior.learn(row, {Target.TTFT: 600_000.0 if i % 50 == 49 else float(clean)})
    assert ttft_of(prior, prompt_tokens=2000) == pytest.approx(28.0 + 37.0, rel=0.15)


def test_nothing_is_predicted_to_take_no_time() -> None:
    prior = Prior()
    idle = feature_matrix(situation(prompt_tokens=0.0, kv=0.0))
    for n in range(1, 300):  # a line through these begins below zero
        row = feature_matrix(situation(prompt_tokens=10.0 * n, in_flight=n, running=n))
        prior.learn(row[0], {Target.TTFT: 0.05 * n**1.6, Target.TPOT: 0.01 * n**1.6, Target.E2E: 0.5 * n**1.6})
    law = prior.freeze().predict(idle)
    assert law[Target.TTFT] > 0
    assert law[Target.TPOT] > 0
    assert prior.freeze().predict_e2e(idle, law[Target.TTFT], law[Target.TPOT]) > 0


def test_end_to_end_knows_the_output_length() -> None:
    prior = Prior()
    world = World(sigma=0.05)
    world.streaming = False
    for _ in range(600):
        s = world.situation()
        prior.learn(feature_matrix(s)[0], world.actual(s, 0))

    def e2e(cap: float) -> float:
        features = feature_matrix(situation(max_output_tokens=cap, in_flight=40.0))
        law = prior.freeze().predict(features)
        return float(prior.freeze().predict_e2e(features, law[Target.TTFT], law[Target.TPOT])[0])

    truth = 25 + 10 + 2 + 6.4 + 150 * (7 + 2 + 3.2)
    assert e2e(300.0) == pytest.approx(truth, rel=0.3)
    assert e2e(300.0) > 1.8 * e2e(100.0)


_LOADS = ("prompt_tokens", "prefill", "in_flight", "waiting", "running", "decode")


@given(
    seed=st.integers(0, 1000),
    base=st.lists(st.floats(0, 500), min_size=6, max_size=6),
    which=st.sampled_from(_LOADS),
    more=st.floats(0.0, 1e5),
)
@settings(max_examples=40, deadline=None)
def test_more_load_is_never_faster(seed: int, base: list[float], which: str, more: float) -> None:
    prior, rng = Prior(), np.random.default_rng(seed)
    for _ in range(30):  # whatever it was taught
        row = feature_matrix(situation(prompt_tokens=float(rng.integers(1, 5000)), in_flight=float(rng.integers(100))))
        prior.learn(row[0], {Target.TTFT: float(rng.lognormal(4, 2)), Target.TPOT: float(rng.lognormal(2, 2))})
    low = dict(zip(_LOADS, base, strict=True))
    high = low | {which: low[which] + more}
    a, b = (prior.freeze().predict(feature_matrix(situation(**load))) for load in (low, high))  # type: ignore[arg-type]
    for target in LAWS:
        assert b[target][0] >= a[target][0] * (1 - 1e-6) > 0


def test_a_row_without_what_is_needed_is_nan_and_the_others_are_not() -> None:
    features = feature_matrix(situation(["a", "b"], prompt_tokens=float("nan"), uncached_tokens=[float("nan"), 5.0]))
    law = Prior().freeze().predict(features)
    assert np.isnan(law[Target.TTFT]).tolist() == [True, False]
    assert np.isnan(law[Target.TPOT]).tolist() == [False, False]
    unknown = feature_matrix(situation(["a", "b"], in_flight=[float("nan"), 1], running=float("nan")))
    assert np.isnan(Prior().freeze().predict(unknown)[Target.TPOT]).tolist() == [True, False]


def test_a_state_of_other_terms_is_refused() -> None:
    state = Prior().state()
    state["ttft"]["moment"] = [1.0]
    with pytest.raises(ValueError, match="terms"):
        Prior().restore(state)


def test_samples_added_up_together_teach_what_they_teach_one_by_one() -> None:
    together, one_by_one = Prior(), Prior()
    rng = np.random.default_rng(0)
    for _ in range(600):
        row = feature_matrix(situation(prompt_tokens=float(rng.integers(10, 4000)), in_flight=float(rng.integers(99))))
        actual = {Target.TTFT: float(rng.lognormal(5, 1)), Target.TPOT: float(rng.lognormal(2, 1))}
        for prior in (together, one_by_one):
            prior.learn(row[0], actual)
        one_by_one.state()  # takes in what waits
    for target, terms in one_by_one.coefficients().items():
        assert together.coefficients()[target] == pytest.approx(terms, rel=1e-9)
