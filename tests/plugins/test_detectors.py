"""Saturation: what is full, and what is merely unknown."""

import pytest
from plugin_fakes import NOW_S, busy_ledger, make, pool, queues, signals
from pydantic import ValidationError


def utilization(candidates, now_s=NOW_S, **parameters):
    return make("utilization-detector", parameters).saturation(candidates, now_s)


def test_utilization_is_the_mean_of_the_fuller_measure():
    full = pool(
        signals(waiting_requests=5, kv_cache_usage_ratio=0.4), signals(waiting_requests=1, kv_cache_usage_ratio=0.8)
    )
    assert utilization(full) == pytest.approx(1.0)
    assert utilization(full, queueDepthThreshold=10, kvCacheUtilThreshold=1.0) == pytest.approx((0.5 + 0.8) / 2)
    assert utilization(queues(10, 0)) == pytest.approx(1.0)
    assert utilization(queues(50)) == pytest.approx(10)


def test_one_measure_is_enough():
    assert utilization(pool(signals(kv_cache_usage_ratio=0.4))) == pytest.approx(0.5)


def test_unknown_and_stale_servers_are_left_out_not_counted_as_full_or_idle():
    stale = signals(waiting_requests=0, scraped_at_s=NOW_S - 10)
    assert utilization(pool(signals(waiting_requests=10), stale, signals(scraped_at_s=None))) == pytest.approx(2.0)
    assert utilization(pool(signals(waiting_requests=0), stale)) == 0.0


def test_an_outage_of_all_metrics_or_an_empty_pool_is_not_saturation():
    assert utilization(pool(size=3)) == 0.0
    assert utilization(pool()) == 0.0
    assert utilization(queues(100, 100), now_s=NOW_S + 60) == 0.0


def test_the_age_that_is_believed_can_be_set():
    candidates = queues(10)
    assert utilization(candidates, now_s=NOW_S + 0.3) == pytest.approx(2)
    assert utilization(candidates, now_s=NOW_S + 0.3, metricsStalenessThreshold="200ms") == 0
    assert utilization(candidates, now_s=NOW_S + 300, metricsStalenessThreshold="10m") == pytest.approx(2)


@pytest.mark.parametrize(
    "bad",
    [
        {"queueDepthThreshold": 0},
        {"kvCacheUtilThreshold": 0},
        {"kvCacheUtilThreshold": 1.1},
        {"metricsStalenessThreshold": "0s"},
        {"metricsStalenessThreshold": "fast"},
        {"metricsStalenessThreshold": 200},
        {"headroom": -0.1},
    ],
)
def test_utilization_detector_refuses(bad):
    with pytest.raises(ValidationError):
        make("utilization-detector", bad)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, 0.75),
        ({"maxConcurrency": 50}, 1.5),
        ({"concurrencyMode": "tokens", "maxTokenConcurrency": 1000}, 0.75),
        ({"concurrencyMode": "hybrid", "maxTokenConcurrency": 2000}, 0.75),
        ({"concurrencyMode": "hybrid", "maxTokenConcurrency": 500}, 1.5),
    ],
)
def test_concurrency_is_in_flight_over_capacity(parameters, expected):
    ledger = busy_ledger(50, 100, tokens_each=10)
    detector = make("concurrency-detector", parameters, ledger=ledger)
    assert detector.saturation(pool(size=2), NOW_S) == pytest.approx(expected)


def test_a_second_replica_halves_the_saturation_and_no_replica_is_none():
    detector = make("concurrency-detector", ledger=busy_ledger(100))
    assert detector.saturation(pool(size=1, version=1), NOW_S) == 1.0
    assert detector.saturation(pool(size=2, version=2), NOW_S) == 0.5
    assert detector.saturation(pool(version=3), NOW_S) == 0.0
