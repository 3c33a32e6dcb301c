import json

import numpy as np
import pytest

from epp.latency.errors import ServedErrors


def test_a_worked_example() -> None:
    errors = ServedErrors()
    errors.observe(100.0, 80.0, 90.0, 0.9)
    errors.observe(100.0, 125.0, 150.0, 0.9)
    summary = errors.summary()
    assert summary.samples == 2
    assert summary.mean_absolute_ms == pytest.approx(22.5)
    assert summary.mean_absolute_ratio == pytest.approx(0.225)
    assert summary.mean_log_ratio == pytest.approx(0.0)
    assert summary.coverage_ratio == {0.9: 0.5}
    assert summary.pinball_ms == {0.9: pytest.approx((0.9 * 10 + 0.1 * 50) / 2)}


def test_without_samples_nothing_is_said() -> None:
    summary = ServedErrors().summary()
    assert summary.samples == 0
    assert summary.mean_absolute_ratio is None
    assert summary.coverage_ratio == {}
    json.dumps(summary.as_dict(), allow_nan=False)


def test_only_the_window_counts_and_quantiles_are_bounded() -> None:
    errors = ServedErrors(window=10, max_quantiles=2)
    for _ in range(50):
        errors.observe(100.0, 1.0, 1.0, 0.5)
    for q in (0.8, 0.9, 0.9):
        errors.observe(100.0, 100.0, 100.0, q)
    summary = errors.summary()
    assert (summary.samples, errors.samples_total) == (10, 53)
    assert summary.coverage_ratio == {0.8: 1.0, 0.9: 1.0}


def test_errors_that_grow_are_noticed_once_and_steady_ones_never() -> None:
    errors, rng = ServedErrors(), np.random.default_rng(0)
    steady = [errors.observe(100.0 * rng.lognormal(0, 0.2), 100.0, 100.0, None) for _ in range(3000)]
    assert not any(steady)
    grown = [errors.observe(200.0 * rng.lognormal(0, 0.2), 100.0, 100.0, None) for _ in range(90)]
    assert grown.index(True) < 60
    assert sum(grown) == 1
