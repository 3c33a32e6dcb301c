import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.signals.pace import Census, Pace, pause_s

FEW = Census(busy=10, resting=10)


@pytest.mark.parametrize(
    ("quiet", "rest_s"), [(0, 0.05), (1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (100_000, 1.0)]
)
def test_the_rest_doubles_with_every_quiet_reading_up_to_the_idle_interval(quiet: int, rest_s: float) -> None:
    assert Pace().rest_s(quiet, 0, FEW) == pytest.approx(rest_s)


@pytest.mark.parametrize(
    ("failures", "rest_s"),
    [(1, 0.1), (3, 0.4), (5, 1.0), (100_000, 1.0)],
)
def test_who_fails_is_asked_less_often_down_to_once_a_second(failures: int, rest_s: float) -> None:
    assert Pace().rest_s(0, failures, FEW) == pytest.approx(rest_s)


def test_failing_never_makes_readings_more_frequent() -> None:
    assert Pace(interval_s=30.0).rest_s(0, 9, FEW) == 30.0


@pytest.mark.parametrize("idle_interval_s", [0.0, 0.01, 0.05])
def test_an_idle_interval_that_is_no_longer_than_the_other_is_no_rest(idle_interval_s: float) -> None:
    assert Pace(0.05, idle_interval_s).rest_s(9, 0, FEW) == 0.05


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 50_000))
def test_a_pool_of_any_size_is_read_at_a_bounded_rate(busy: int, idle: int, failing: int) -> None:
    pace, census = Pace(), Census(busy, idle + failing)
    assert busy / pace.rest_s(0, 0, census) <= pace.max_reads_per_s * 1.001
    resting = idle / pace.rest_s(1000, 0, census) + failing / pace.rest_s(0, 1000, census)
    assert resting <= max(pace.max_idle_reads_per_s * 1.001, 1.0)


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 60))
def test_more_quiet_never_means_less_rest(busy: int, resting: int, quiet: int) -> None:
    pace, census = Pace(), Census(busy, resting)
    assert 0.05 <= pace.rest_s(quiet, 0, census) <= pace.rest_s(quiet + 1, 0, census)


@pytest.mark.parametrize(
    ("took_s", "pause"),
    [
        (0.01, 0.04),  # begins an interval after the last one began
        (0.3, 0.3),  # a slow page rests as long as it took
        (1.5, 1.5),
    ],
)
def test_a_slow_page_is_left_alone_for_as_long_as_it_took(took_s: float, pause: float) -> None:
    assert pause_s(0.05, took_s) == pytest.approx(pause)
