import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.latency.trees import FlatTrees


def data(rng: np.random.Generator, rows: int, features: int, missing: float) -> np.ndarray:
    x = (rng.integers(0, 20, (rows, features)) * rng.choice([0.1, 1.0, 100.0])).astype(np.float32)
    x[rng.random(x.shape) < missing] = np.nan
    return x


def booster(x: np.ndarray, y: np.ndarray, trees: int, **parameters: object) -> xgboost.Booster:
    return xgboost.train({"nthread": 1, "eta": 0.3, **parameters}, xgboost.DMatrix(x, label=y, nthread=1), trees)


@given(
    seed=st.integers(0, 2**16),
    depth=st.integers(1, 6),
    trees=st.integers(1, 12),
    missing=st.sampled_from([0.0, 0.1, 0.6]),
    rows=st.sampled_from([1, 2, 10, 63, 64, 65, 200]),
    constraint=st.sampled_from([0, 1, -1]),
)
@settings(max_examples=40, deadline=None)
def test_flat_trees_say_what_xgboost_says(
    seed: int, depth: int, trees: int, missing: float, rows: int, constraint: int
) -> None:
    rng = np.random.default_rng(seed)
    x = data(rng, 300, 5, missing)
    y = 50.0 + np.nan_to_num(x) @ rng.normal(size=5) + rng.normal(size=300)
    one = booster(x, y, trees, max_depth=depth, monotone_constraints=(constraint, 0, 1, 0, 0))
    two = booster(x, -y, trees + 3, max_depth=max(1, depth - 1), max_bin=16)
    query = data(rng, rows, 5, missing)
    flat = FlatTrees([one, two])
    expected = np.column_stack([one.inplace_predict(query), two.inplace_predict(query)])
    for _ in range(2):  # buffers of the first call serve the second
        np.testing.assert_allclose(flat.predict(query), expected, rtol=1e-5, atol=1e-4)


def test_several_quantiles_come_in_one_call() -> None:
    rng = np.random.default_rng(1)
    x = data(rng, 500, 4, 0.1)
    y = np.nan_to_num(x).sum(axis=1) * rng.lognormal(0, 0.3, 500)
    model = booster(x, y, 15, objective="reg:quantileerror", quantile_alpha=[0.5, 0.9, 0.95])
    np.testing.assert_allclose(FlatTrees([model]).predict(x), model.inplace_predict(x), rtol=1e-5)


def test_a_value_on_the_threshold_goes_right() -> None:
    x = np.repeat(np.array([[1.0], [2.0]], dtype=np.float32), 50, axis=0)
    model = booster(x, np.repeat([0.0, 10.0], 50), 1, max_depth=1)
    threshold = np.float32(2.0)
    probes = np.array([[np.nextafter(threshold, np.float32(0))], [threshold], [np.inf], [-np.inf]], dtype=np.float32)
    np.testing.assert_allclose(FlatTrees([model]).predict(probes)[:, 0], model.inplace_predict(probes))


def test_trees_that_never_split_are_constants() -> None:
    x = np.ones((20, 2), dtype=np.float32)
    model = booster(x, np.full(20, 3.5), 4)
    np.testing.assert_allclose(FlatTrees([model]).predict(x), np.full((20, 1), 3.5), rtol=1e-6)


def test_no_rows_are_no_predictions() -> None:
    x = data(np.random.default_rng(0), 50, 3, 0.0)
    assert FlatTrees([booster(x, x[:, 0], 3)]).predict(x[:0]).shape == (0, 1)


def test_what_cannot_be_reproduced_is_refused() -> None:
    x = data(np.random.default_rng(0), 100, 3, 0.0)
    with pytest.raises(ValueError, match="link"):
        FlatTrees([booster(x, x[:, 0] > 1, 2, objective="binary:logistic")])
    with pytest.raises(ValueError, match="share their features"):
        FlatTrees([booster(x, x[:, 0], 2), booster(x[:, :2], x[:, 0], 2)])
    with pytest.raises(ValueError, match="levels"):
        FlatTrees([booster(x, np.random.default_rng(1).normal(size=100), 2, max_depth=20, min_child_weight=0)])
    with pytest.raises(ValueError, match="no trees"):
        FlatTrees([])
    with pytest.raises(ValueError, match="3 features"):
        FlatTrees([booster(x, x[:, 0], 2)]).predict(x[:, :2])
