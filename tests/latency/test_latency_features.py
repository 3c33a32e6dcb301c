import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_world import situation

from epp.latency.features import COLUMN, FEATURES, feature_matrix, monotone_constraints
from epp.latency.types import Target

NAN = float("nan")


def column(matrix: np.ndarray, name: str) -> list[float]:
    return matrix[:, COLUMN[name]].tolist()


def test_a_worked_example() -> None:
    matrix = feature_matrix(
        situation(
            ["a", "b"],
            prompt_tokens=1000,
            max_output_tokens=64,
            uncached_tokens=[1000, 200],
            waiting=[2, 0],
            running=[9, 3],
            kv=[0.5, 0.2],
            in_flight=[10, 4],
            prefill=[300, 0],
            decode=[8000, 4000],
        )
    )
    assert matrix.dtype == np.float32
    assert matrix.shape == (2, len(FEATURES))
    assert column(matrix, "prefill_tokens_queued") == [1300, 200]
    assert column(matrix, "active_requests") == [11, 4]
    assert column(matrix, "max_output_tokens") == [64, 64]


def test_missing_metrics_are_unknown_not_idle() -> None:
    matrix = feature_matrix(situation(waiting=NAN, running=NAN, kv=NAN, in_flight=7))
    assert np.isnan(column(matrix, "waiting_requests")).all()
    assert np.isnan(column(matrix, "kv_cache_usage_ratio")).all()
    assert column(matrix, "active_requests") == [7]


def test_unknown_cache_means_the_whole_prompt() -> None:
    matrix = feature_matrix(situation(prompt_tokens=800, uncached_tokens=NAN, prefill=50))
    assert column(matrix, "uncached_tokens") == [800]
    assert column(matrix, "prefill_tokens_queued") == [850]


def test_kv_usage_above_one_is_clamped_and_does_not_spoil_its_neighbours() -> None:
    matrix = feature_matrix(situation(["a", "b"], kv=[1.0001, 0.5]))
    assert column(matrix, "kv_cache_usage_ratio") == [1.0, 0.5]


@pytest.mark.parametrize("absurd", [-1.0, float("inf"), float("-inf"), 1e300])
def test_absurd_values_count_as_unknown(absurd: float) -> None:
    matrix = feature_matrix(situation(waiting=absurd, kv=absurd, prefill=absurd))
    for name in ("waiting_requests", "kv_cache_usage_ratio", "prefill_tokens_before"):
        assert np.isnan(column(matrix, name)).all()


_VALUE = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1e5))


@given(st.lists(st.tuples(*[_VALUE] * 7), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_numbers_give_sane_columns(rows: list[tuple[float, ...]]) -> None:
    u, w, r, k, f, p, d = np.array(rows).T
    matrix = feature_matrix(
        situation(
            [str(i) for i in range(len(rows))],
            uncached_tokens=u,
            waiting=w,
            running=r,
            kv=k,
            in_flight=f,
            prefill=p,
            decode=d,
        )
    )
    known = matrix[~np.isnan(matrix)]
    assert (known >= 0).all()
    assert np.isfinite(known).all()
    assert not (matrix[:, COLUMN["kv_cache_usage_ratio"]] > 1).any()


def test_what_physics_says_is_a_sign_per_target_and_feature() -> None:
    assert monotone_constraints(Target.TTFT)[COLUMN["uncached_tokens"]] == 1
    assert monotone_constraints(Target.TPOT)[COLUMN["uncached_tokens"]] == 0
