import logging
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import UNKNOWN_SIGNALS, EndpointSignals, Snapshot
from epp.pool.static import parse_endpoints
from epp.pool.store import EndpointChanges, PoolStore

A, B, C = parse_endpoints("a:1,b:1,c:1")
BUSY = EndpointSignals(waiting_requests=7, scraped_at_s=1.0)


def known(store: PoolStore) -> dict[str, EndpointSignals]:
    snapshot = store.snapshot()
    return dict(zip((e.id for e in snapshot.endpoints), snapshot.signals, strict=True))


def test_the_snapshot_is_shared_until_something_changes() -> None:
    store = PoolStore()
    store.replace([B, A])
    first = store.snapshot()
    store.replace([A, B])
    store.update_signals("default/gone-1", BUSY)
    assert store.snapshot() is first
    assert first.endpoints == (A, B)
    store.update_signals(A.id, BUSY)
    second = store.snapshot()
    assert second.version > first.version
    assert second.endpoints_version == first.endpoints_version
    store.replace([A])
    assert store.snapshot().endpoints_version > second.endpoints_version
    assert len(first) == 2


def test_a_snapshot_never_changes_and_tells_whether_any_cache_did() -> None:
    store = PoolStore()
    store.replace([A, B])
    store.update_signals(A.id, replace(BUSY, kv_blocks=10, restarts=0))
    first = store.snapshot()
    store.update_signals(A.id, replace(BUSY, waiting_requests=8, kv_blocks=10, restarts=0))
    second = store.snapshot()
    assert (first.waiting_requests[0], second.waiting_requests[0]) == (7, 8)
    assert second.caches is first.caches
    with pytest.raises(ValueError, match="read-only"):
        second.waiting_requests[0] = 0
    for change in (replace(BUSY, kv_blocks=10, restarts=1), replace(BUSY, kv_blocks=11, restarts=1)):
        before = store.snapshot()
        store.update_signals(A.id, change)
        assert store.snapshot().caches is not before.caches
        assert store.snapshot().caches[0].restarts == 1
    store.replace([A])
    assert len(store.snapshot().caches) == 1


def test_what_was_read_is_believed_for_a_while_and_while_it_is_current() -> None:
    store = PoolStore()
    store.replace([A, B, C])
    store.update_signals(A.id, EndpointSignals(scraped_at_s=10.0))
    store.update_signals(B.id, EndpointSignals(scraped_at_s=10.0, current_until_s=11.0))
    snapshot = store.snapshot()
    assert snapshot.age_s(12.0).tolist() == [2.0, 2.0, math.inf]
    assert snapshot.is_fresh(10.5, 0.5).tolist() == [True, True, False]
    assert snapshot.is_fresh(11.0, 0.5).tolist() == [False, True, False]
    assert snapshot.is_fresh(11.1, 0.5).tolist() == [False, False, False]
    assert snapshot.is_fresh(11.1, 2.0).tolist() == [True, True, False]


def test_an_endpoint_that_comes_back_starts_unknown() -> None:
    store = PoolStore()
    store.replace([A, B])
    store.update_signals(A.id, BUSY)
    store.replace([B])
    store.replace([A, B])
    assert known(store)[A.id] is UNKNOWN_SIGNALS


@pytest.mark.parametrize("moved", [replace(A, host="a2"), replace(A, port=2), replace(A, metrics_port=9)])
def test_an_endpoint_behind_another_address_starts_unknown(moved: Endpoint) -> None:
    store = PoolStore()
    store.replace([A])
    store.update_signals(A.id, BUSY)
    assert store.replace([moved]) == EndpointChanges(changed=((A, moved),))
    assert known(store) == {A.id: UNKNOWN_SIGNALS}


def test_a_new_label_keeps_what_is_known_and_is_told() -> None:
    store = PoolStore()
    store.replace([A])
    store.update_signals(A.id, BUSY)
    seen: list[EndpointChanges] = []
    store.subscribe(seen.append)
    decode = replace(A, labels={"llm-d.ai/role": "decode"})
    store.replace([decode])
    assert known(store) == {A.id: BUSY}
    assert store.snapshot().endpoints[0].role == "decode"
    assert seen == [EndpointChanges(added=(A,)), EndpointChanges(changed=((A, decode),))]


def test_signals_that_come_after_their_endpoint_left_are_ignored() -> None:
    store = PoolStore()
    store.replace([A])
    store.replace([])
    store.update_signals(A.id, BUSY)
    store.replace([A])
    assert known(store) == {A.id: UNKNOWN_SIGNALS}


def test_duplicates_are_settled_and_reported_once_while_they_last(caplog: pytest.LogCaptureFixture) -> None:
    store = PoolStore()
    moved = replace(A, port=2)
    twin = replace(C, host=B.host)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.replace([A, B, twin, moved])
    assert store.snapshot().endpoints == (moved, B)
    assert len(caplog.messages) == 2
    store.replace([A])
    store.replace([A, replace(A, port=2)])
    assert len(caplog.messages) == 3


def test_a_subscription_can_end() -> None:
    store = PoolStore()
    seen: list[EndpointChanges] = []
    unsubscribe = store.subscribe(seen.append)
    store.replace([A])
    store.replace([A])
    unsubscribe()
    store.replace([B])
    assert seen == [EndpointChanges(added=(A,))]


endpoints = st.builds(
    Endpoint,
    namespace=st.just("default"),
    name=st.sampled_from(["a", "b", "c"]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
    port=st.sampled_from([1, 2]),
    labels=st.sampled_from([{}, {"x": "y"}]),
)
steps = st.lists(
    st.one_of(
        st.lists(endpoints, max_size=5),
        st.tuples(st.sampled_from(["default/a", "default/b", "default/c"]), st.integers(0, 99)),
    ),
    max_size=20,
)


@settings(max_examples=200)
@given(steps)
def test_any_sequence_of_writes_gives_the_recomputed_truth(sequence: list[list[Endpoint] | tuple[str, int]]) -> None:
    store = PoolStore()
    followed: dict[str, Endpoint] = {}

    def follow(changes: EndpointChanges) -> None:
        for endpoint in changes.removed:
            assert followed.pop(endpoint.id) == endpoint
        for before, after in changes.changed:
            assert followed[before.id] == before
            followed[after.id] = after
        for endpoint in changes.added:
            assert endpoint.id not in followed
            followed[endpoint.id] = endpoint

    store.subscribe(follow)
    truth: dict[str, Endpoint] = {}
    signals: dict[str, EndpointSignals] = {}
    for step in sequence:
        before = store.snapshot()
        if isinstance(step, list):
            latest = {e.id: e for e in step}
            now = {}
            for e in latest.values():
                if e.address not in {o.address for o in now.values()}:
                    now[e.id] = e
            signals = {k: v for k, v in signals.items() if k in now and now[k].address == truth[k].address}
            truth = now
        else:
            key, waiting = step
            word = EndpointSignals(waiting_requests=waiting)
            store.update_signals(key, word)
            if key in truth:
                signals[key] = word
            continue
        store.replace(step)
        after = store.snapshot()
        assert (after.endpoints_version == before.endpoints_version) == (after.endpoints == before.endpoints)
    assert store.snapshot().endpoints == tuple(truth[key] for key in sorted(truth))
    assert known(store) == {key: signals.get(key, UNKNOWN_SIGNALS) for key in truth}
    fresh = Snapshot.build(tuple(truth[key] for key in sorted(truth)), signals)
    np.testing.assert_array_equal(store.snapshot().columns, fresh.columns)
    assert store.snapshot().caches == fresh.caches
    assert followed == truth
