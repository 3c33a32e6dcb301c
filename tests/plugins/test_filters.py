"""Filters keep what they say, in order, and never more than they were given."""

import numpy as np
import pytest
from plugin_fakes import NOW_S, a_cycle, busy_ledger, make, pool, queues, signals
from pydantic import ValidationError

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import IN_FLIGHT_LOAD, TOKENIZED_PROMPT, InFlightLoad, TokenizedPrompt

ROLES = [
    None, "decode", "prefill", "encode", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode",
    "encode-decode", "",
]  # fmt: skip


def kept(plugin, candidates, cycle=None):
    return plugin.filter(cycle or a_cycle(), candidates).rows.tolist()


@pytest.mark.parametrize(
    ("plugin_type", "roles"),
    [
        ("decode-filter", [None, "decode", "prefill-decode", "both", "encode-prefill-decode"]),
        ("prefill-filter", ["prefill", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode"]),
        ("encode-filter", ["encode", "encode-prefill", "encode-prefill-decode"]),
    ],
)
def test_role_filters(plugin_type, roles):
    candidates = pool(labels=[{} if role is None else {"llm-d.ai/role": role} for role in ROLES])
    assert [ROLES[row] for row in kept(make(plugin_type), candidates)] == roles
    assert make(plugin_type).drop_reason()


LABELS = [{"gpu": "h100", "tier": "gold"}, {"gpu": "a100"}, {"tier": "gold"}, {}]


@pytest.mark.parametrize(
    ("selector", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"matchLabels": {"gpu": "h100"}}, [0]),
        ({"matchLabels": {"gpu": "h100", "tier": "silver"}}, []),
        ({"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "a100"]}]}, [0, 1]),
        ({"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["h100"]}]}, [1, 2, 3]),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, [0, 2]),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, [1, 3]),
        ({"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, [0]),
    ],
)
@pytest.mark.parametrize("plugin_type", ["label-selector-filter", "by-label-selector"])
def test_label_selector_filter(plugin_type, selector, rows):
    assert kept(make(plugin_type, selector), pool(labels=LABELS)) == rows


@pytest.mark.parametrize(
    "bad",
    [
        {"matchExpressions": [{"key": "gpu", "operator": "In"}]},
        {"matchExpressions": [{"key": "gpu", "operator": "Exists", "values": ["x"]}]},
        {"matchExpressions": [{"key": "gpu", "operator": "Like", "values": ["x"]}]},
        {"matchExpressions": [{"operator": "Exists"}]},
        {"matchLabels": {"gpu": 1}},
    ],
)
def test_label_selector_filter_refuses(bad):
    with pytest.raises(ValidationError):
        make("label-selector-filter", bad)


@pytest.mark.parametrize(
    ("parameters", "rows"),
    [
        ({"label": "gpu", "validValues": ["h100", "b200"]}, [0]),
        ({"label": "gpu", "validValues": ["h100"], "allowsNoLabel": True}, [0, 2, 3]),
        ({"label": "gpu"}, []),
    ],
)
def test_by_label(parameters, rows):
    assert kept(make("by-label", parameters), pool(labels=LABELS)) == rows


def test_a_filter_keeps_only_what_it_was_given():
    narrow = pool(labels=LABELS).where(np.array([False, True, True, True]))
    assert kept(make("label-selector-filter", {"matchLabels": {"tier": "gold"}}), narrow) == [2]


def test_a_label_filter_follows_the_pool():
    plugin = make("label-selector-filter", {"matchLabels": {"tier": "gold"}})
    assert kept(plugin, pool(labels=LABELS, version=1)) == [0, 2]
    assert kept(plugin, pool(labels=LABELS[::-1], version=2)) == [1, 3]
    assert kept(plugin, pool(labels=[{}], version=3)) == []


def dual_stack_pool():
    members = (
        Endpoint("ns", "a-rank-0", "10.0.0.1", 8000),
        Endpoint("ns", "a-rank-1", "10.0.0.1", 8001),
        Endpoint("ns", "b", "10.0.0.2", 8000),
        Endpoint("ns", "c", "fd00::3", 8000),
    )
    return Candidates.all_of(Snapshot.build(members))


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (None, [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ("10.0.0.1", [0, 1]),
        ("10.0.0.1:8001", [1]),
        ("10.0.0.2, [fd00::3]:8000", [2, 3]),
        ("fd00::3", [3]),
        ("10.9.9.9", []),
        ("10.0.0.1:9999,garbage", []),
    ],
)
def test_header_based_testing_filter(header, rows):
    cycle = a_cycle(headers={} if header is None else {"test-epp-endpoint-selection": header})
    assert kept(make("header-based-testing-filter"), dual_stack_pool(), cycle) == rows


def test_utilization_detector_as_a_filter():
    candidates = pool(
        signals(waiting_requests=4, kv_cache_usage_ratio=0.7),
        signals(waiting_requests=5, kv_cache_usage_ratio=0.1),
        signals(waiting_requests=0, kv_cache_usage_ratio=0.8),
        signals(waiting_requests=0, kv_cache_usage_ratio=0.0, scraped_at_s=NOW_S - 60),
        signals(scraped_at_s=None),
    )
    assert kept(make("utilization-detector"), candidates) == [0]
    assert kept(make("utilization-detector", {"headroom": 0.2}), candidates) == [0, 1, 2]


def test_utilization_detector_as_a_filter_keeps_all_when_none_is_left():
    assert kept(make("utilization-detector"), queues(50, 60)) == [0, 1]
    assert kept(make("utilization-detector"), pool(size=2)) == [0, 1]


@pytest.mark.parametrize(
    ("parameters", "rows"),
    [
        ({"maxConcurrency": 4}, [0]),
        ({"maxConcurrency": 4, "headroom": 0.5}, [0, 1]),
        ({"maxConcurrency": 1}, []),
        ({"maxTokenConcurrency": 50, "concurrencyMode": "tokens"}, [0, 1]),
        ({"maxConcurrency": 4, "maxTokenConcurrency": 50, "concurrencyMode": "hybrid"}, [0]),
    ],
)
def test_concurrency_detector_as_a_filter(parameters, rows):
    ledger = busy_ledger(1, 4, 9, tokens_each=10)
    assert kept(make("concurrency-detector", parameters, ledger=ledger), pool(size=3)) == rows


def test_utilization_filter():
    candidates = pool(
        signals(waiting_requests=4, running_requests=10, kv_cache_usage_ratio=0.5),
        signals(waiting_requests=0, running_requests=90, kv_cache_usage_ratio=0.5),
        signals(scraped_at_s=None),
    )
    cycle = a_cycle()
    cycle.publish(IN_FLIGHT_LOAD.by(None), InFlightLoad(np.array([9.0, 1.0, 0.0]), *np.zeros((3, 3))))

    def keeps(*conditions, **more):
        listed = [{"metric": metric, "maxValue": value} for metric, value in conditions]
        return kept(make("utilization-filter", {"conditions": listed, **more}), candidates, cycle)

    assert keeps(("waiting-queue", 4)) == [0, 1]
    assert keeps(("waiting-queue", 4), ("running-requests", 20)) == [0]
    assert keeps(("active-requests", 1)) == [1, 2]
    assert keeps(("kv-cache-utilization", 0.1)) == []
    assert keeps(("kv-cache-utilization", 0.1), fallbackOnEmpty=True) == [0, 1, 2]


def test_utilization_filter_skips_a_metric_that_no_server_has():
    plugin = make("utilization-filter", {"conditions": [{"metric": "waiting-queue", "maxValue": 4}]})
    assert plugin.consumes == ()
    assert kept(plugin, pool(size=2)) == [0, 1]


def lengths(tokens):
    cycle = a_cycle()
    cycle.publish(TOKENIZED_PROMPT.by(None), TokenizedPrompt((b"x" * 4 * tokens,), b""))
    return cycle


RANGES = [{"llm-d.ai/context-length-range": text} for text in ("0-2000", "2000-4000", "1000-1000", "x", "9-1")] + [{}]


def test_context_length_aware_scores():
    scores = make("context-length-aware").score(lengths(1000), pool(labels=RANGES)).tolist()
    assert scores == pytest.approx([0.3 + 0.7 * (0.7 / 1.2 + 0.15), 0.15, 1.0, 0.0, 0.0, 0.5])
    assert make("context-length-aware").score(a_cycle(), pool(size=2)).tolist() == [0.5, 0.5]


def test_context_length_aware_filters_only_when_asked_and_when_it_knows_the_length():
    candidates = pool(labels=RANGES)
    assert kept(make("context-length-aware"), candidates, lengths(1000)) == [0, 1, 2, 3, 4, 5]
    plugin = make("context-length-aware", {"enableFiltering": True})
    assert kept(plugin, candidates, lengths(1000)) == [0, 2, 5]
    assert kept(plugin, candidates) == [0, 1, 2, 3, 4, 5]
