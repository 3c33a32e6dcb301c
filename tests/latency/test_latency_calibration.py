import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.latency.calibration import LEVELS, Calibrator, load_level

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def factor(calibrator: Calibrator, q: float, level: int = 0) -> float:
    return float(calibrator.factors(q, np.array([level]))[0])


@pytest.mark.parametrize("q", QUANTILES)
def test_bounds_cover_lognormal_latencies_as_often_as_they_say(q: float) -> None:
    rng = np.random.default_rng(7)
    calibrator = Calibrator()
    covered = []
    for i in range(6000):
        level = int(rng.integers(2))  # errors under high load are three times as wide
        score = float(rng.normal(0.1, 0.15 if level == 0 else 0.45))
        if i >= 1000:
            covered.append((level, score <= factor(calibrator, q, level)))
        calibrator.observe(score, level)
    for level in (0, 1):
        hits = [hit for at, hit in covered if at == level]
        assert np.mean(hits) == pytest.approx(q, abs=0.02)


@given(scores=st.lists(st.floats(-3, 3), max_size=120), levels=st.integers(1, LEVELS), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_higher_quantile_is_never_a_lower_bound(scores: list[float], levels: int, seed: int) -> None:
    calibrator = Calibrator(level_min=10)
    rng = np.random.default_rng(seed)
    for score in scores:
        calibrator.observe(score, int(rng.integers(levels)))
    for level in range(LEVELS):
        factors = [factor(calibrator, q, level) for q in (0.01, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999)]
        assert factors == sorted(factors)


def test_before_any_error_the_bounds_are_those_of_a_sensible_one() -> None:
    calibrator = Calibrator(assumed_score=0.4)
    assert factor(calibrator, 0.5) == pytest.approx(0.0, abs=1e-9)
    assert factor(calibrator, 0.9) == pytest.approx(0.4 * 1.2816, rel=1e-3)
    assert factor(calibrator, 0.99) == pytest.approx(0.4 * 2.3263, rel=1e-3)


def test_few_good_errors_do_not_make_bounds_narrow() -> None:
    calibrator = Calibrator(assumed_score=0.4)
    for _ in range(5):
        calibrator.observe(0.0, 0)
    assert factor(calibrator, 0.95) >= 0.4 * 1.6


def test_the_rank_has_the_correction_for_finite_samples() -> None:
    calibrator = Calibrator()
    for i in range(99):
        calibrator.observe(i / 100, 0)
    assert factor(calibrator, 0.9) == pytest.approx(0.89)  # the 90th of 99
    assert factor(calibrator, 0.99) == pytest.approx(0.98)  # the last


def test_what_is_forgotten_no_longer_counts() -> None:
    calibrator = Calibrator(window=100)
    for _ in range(100):
        calibrator.observe(5.0, 0)
    for _ in range(100):
        calibrator.observe(0.1, 0)
    assert factor(calibrator, 0.95) == pytest.approx(0.1)
    calibrator.shorten(30)
    assert calibrator.samples == 30


def test_a_restored_calibrator_has_the_same_bounds() -> None:
    rng = np.random.default_rng(3)
    one, two = Calibrator(), Calibrator()
    for _ in range(300):
        one.observe(float(rng.normal()), int(rng.integers(LEVELS)))
    state = one.state()
    two.restore(state["all"], state["levels"])  # type: ignore[arg-type]
    levels = np.arange(LEVELS)
    assert two.factors(0.9, levels).tolist() == one.factors(0.9, levels).tolist()
    with pytest.raises(ValueError, match="no number"):
        two.restore([float("nan")], [[] for _ in range(LEVELS)])


def test_levels_follow_the_load_and_unknown_is_the_highest() -> None:
    features = np.zeros((4, 12), dtype=np.float32)
    features[:, 7] = [0, 20, 1000, np.nan]
    levels = load_level(features).tolist()
    assert levels[0] == 0 < levels[1] < levels[2] == levels[3] == LEVELS - 1
