"""Scorers that read what servers report: their formulas, and what they do when a server reports nothing."""

import numpy as np
import pytest
from plugin_fakes import NOW_S, a_cycle, make, pool, queues, signals

from epp.plugins._signals import STALE_AFTER_S
from epp.pool.snapshot import LoraState


def scores(plugin, candidates, **cycle):
    return plugin.score(a_cycle(**cycle), candidates).tolist()


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [((0, 5, 10), [1, 0.5, 0]), ((3, 3), [1, 1]), ((0, 0, 0), [1, 1, 1]), ((7,), [1]), ((1, 0), [0, 1])],
)
def test_queue_scorer(waiting, expected):
    assert scores(make("queue-scorer"), queues(*waiting)) == expected


@pytest.mark.parametrize(("running", "expected"), [((8, 16, 24), [1, 0.5, 0]), ((4, 4), [1, 1]), ((9,), [1])])
def test_running_requests_size_scorer(running, expected):
    candidates = pool(*(signals(running_requests=r) for r in running))
    assert scores(make("running-requests-size-scorer"), candidates) == expected


def test_kv_cache_utilization_scorer():
    candidates = pool(*(signals(kv_cache_usage_ratio=u) for u in (0.0, 0.3, 1.0)))
    assert scores(make("kv-cache-utilization-scorer"), candidates) == [1, 0.7, 0]


@pytest.mark.parametrize("threshold", [None, 128, 0, -3])
def test_load_aware_scorer_and_its_default_threshold(threshold):
    plugin = make("load-aware-scorer", {} if threshold is None else {"threshold": threshold})
    assert scores(plugin, queues(0, 32, 128, 500)) == [0.5, 0.375, 0, 0]


def test_load_aware_scorer_with_a_threshold():
    assert scores(make("load-aware-scorer", {"threshold": 10}), queues(0, 5, 20)) == [0.5, 0.25, 0]


def lora(active=(), waiting=(), max_active=2, **more):
    return signals(lora=LoraState(frozenset(active), frozenset(waiting), max_active), **more)


def test_lora_affinity_scorer():
    candidates = pool(
        lora(active={"tuned"}),
        lora(active={"other"}),
        lora(active={"other"}, waiting={"tuned"}),
        lora(active={"other", "third"}),
        signals(),
    )
    assert scores(make("lora-affinity-scorer"), candidates, model="tuned") == [1.0, 0.8, 0.6, 0.0, 0.0]


def test_lora_affinity_does_not_trust_a_stale_server():
    candidates = pool(lora(active={"tuned"}, scraped_at_s=NOW_S - 60), lora(), lora(active={"a", "b"}))
    assert scores(make("lora-affinity-scorer"), candidates, model="tuned") == [0.4, 0.8, 0.0]


SCRAPED = [
    ("queue-scorer", "waiting_requests", 10),
    ("running-requests-size-scorer", "running_requests", 10),
    ("kv-cache-utilization-scorer", "kv_cache_usage_ratio", 0.9),
    ("load-aware-scorer", "waiting_requests", 64),
]


@pytest.mark.parametrize(("plugin_type", "signal", "busy"), SCRAPED)
@pytest.mark.parametrize("scraped_at_s", [None, NOW_S - STALE_AFTER_S - 0.1])
def test_missing_or_stale_metrics_are_unknown_not_idle(plugin_type, signal, busy, scraped_at_s):
    frozen_while_idle = signals(scraped_at_s=scraped_at_s, **({} if scraped_at_s is None else {signal: 0.0}))
    candidates = pool(signals(**{signal: 0.0}), frozen_while_idle, signals(**{signal: float(busy)}))
    idle, unknown, loaded = scores(make(plugin_type), candidates)
    assert idle > unknown > loaded
    assert unknown == pytest.approx((idle + loaded) / 2)


@pytest.mark.parametrize("plugin_type", [row[0] for row in SCRAPED])
def test_when_no_server_is_known_all_are_alike(plugin_type):
    assert scores(make(plugin_type), pool(size=3)) == [0.5, 0.5, 0.5]
    assert scores(make(plugin_type), pool(size=1)) == [0.5]


def test_a_page_without_the_metric_is_unknown_too():
    assert scores(make("queue-scorer"), queues(0, None, 10)) == [1, 0.5, 0]


def test_a_value_of_just_the_allowed_age_counts():
    candidates = pool(
        signals(waiting_requests=0, scraped_at_s=NOW_S - STALE_AFTER_S), signals(waiting_requests=4, scraped_at_s=NOW_S)
    )
    assert scores(make("queue-scorer"), candidates) == [1, 0]


def test_scores_are_for_the_candidates_left_and_compare_only_those():
    left = queues(0, 5, 10).where(np.array([False, True, True]))
    assert scores(make("queue-scorer"), left) == [1, 0]


def test_header_label_affinity_scorer():
    plugin = make("header-label-affinity-scorer", {"headerName": "X-Zone", "labelKey": "zone"})
    candidates = pool(labels=[{"zone": "a"}, {"zone": "b"}, {}])
    assert scores(plugin, candidates, headers={"x-zone": "b"}) == [0, 1, 0]
    assert scores(plugin, candidates) == [0, 0, 0]


@pytest.mark.parametrize("plugin_type", ["queue-scorer", "kv-cache-utilization-scorer", "running-requests-size-scorer"])
def test_scores_that_are_kept_follow_what_is_believed(plugin_type):
    """Requests that see the same snapshot share what was worked out; not when a value has grown too old meanwhile."""
    known = {"waiting_requests": 3, "kv_cache_usage_ratio": 0.5, "running_requests": 3}
    idle = dict.fromkeys(known, 0)
    old, new = signals(**known), signals(scraped_at_s=NOW_S + 1, **idle)
    plugin, candidates = make(plugin_type), pool(old, new, signals(scraped_at_s=NOW_S + 1, **known))
    at_first = scores(plugin, candidates)
    assert scores(plugin, candidates, now_s=NOW_S + STALE_AFTER_S) == at_first
    later = scores(plugin, candidates, now_s=NOW_S + STALE_AFTER_S + 0.5)
    assert later == scores(make(plugin_type), pool(*candidates.snapshot.signals), now_s=NOW_S + STALE_AFTER_S + 0.5)
    assert later != at_first
    unknown = scores(plugin, candidates, now_s=NOW_S + 60)
    assert unknown == [0.5, 0.5, 0.5]


def test_what_is_kept_of_one_snapshot_is_not_used_for_another():
    plugin = make("queue-scorer")
    assert scores(plugin, queues(0, 5, 10)) == [1, 0.5, 0]
    assert scores(plugin, queues(10, 5, 0)) == [0, 0.5, 1]
    assert scores(plugin, queues(0, 5, 10).where(np.array([False, True, True]))) == [1, 0]
