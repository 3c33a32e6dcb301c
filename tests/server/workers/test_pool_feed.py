"""The parent's pool and a worker's are one, whatever happens and whenever the worker came."""

import os
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals, LoraState
from epp.pool.store import PoolStore
from epp.server.workers import shared_load
from epp.server.workers.messages import PoolChange
from epp.server.workers.pool_feed import PoolFeed, follow
from epp.server.workers.shared_load import SharedLoad

signals = st.builds(
    EndpointSignals,
    waiting_requests=st.none() | st.floats(0, 9),
    kv_blocks=st.none() | st.integers(1, 9),
    lora=st.none() | st.just(LoraState(frozenset({"a"}), frozenset(), 4)),
    scraped_at_s=st.floats(0, 100),
    restarts=st.integers(0, 3),
)
endpoints = st.builds(
    Endpoint,
    namespace=st.just("default"),
    name=st.sampled_from("abcd"),
    host=st.just("10.0.0.1"),
    port=st.integers(8000, 8003),
    labels=st.just({}) | st.just({"role": "decode"}),
)
steps = st.one_of(
    st.tuples(st.just("replace"), st.lists(endpoints, max_size=4)),
    st.tuples(st.just("signals"), st.tuples(st.sampled_from("abcd"), signals)),
    st.tuples(st.just("tell"), st.none()),
    st.tuples(st.just("come"), st.none()),
)


@settings(max_examples=60)
@given(st.lists(steps, max_size=25))
def test_a_copy_follows(script: list[tuple[str, object]]) -> None:
    memory = shared_load.create(2)
    store = PoolStore()
    feed = PoolFeed(store, SharedLoad(memory, 2, None))
    os.close(memory)
    copies: list[PoolStore] = []

    def tell(change: PoolChange | None, to: list[PoolStore]) -> None:
        if change is not None:
            for copy in to:
                follow(pickle.loads(pickle.dumps(change)), copy)

    for what, value in [*script, ("tell", None)]:
        match what, value:
            case "replace", list():
                store.replace(value)
            case "signals", (name, read):
                store.update_signals(f"default/{name}", read)
            case "tell", _:
                tell(feed.change(), copies)
            case "come", _:
                tell(feed.change(), copies)
                copies.append(PoolStore())
                tell(feed.whole(), copies[-1:])
    assert feed.change() is None
    snapshot = store.snapshot()
    for copy in copies:
        assert copy.snapshot().endpoints == snapshot.endpoints
        assert copy.snapshot().signals == snapshot.signals


def test_what_did_not_change_is_not_told() -> None:
    memory = shared_load.create(2)
    store = PoolStore()
    feed = PoolFeed(store, SharedLoad(memory, 2, None))
    os.close(memory)
    store.replace([Endpoint("default", name, "10.0.0.1", 8000 + n) for n, name in enumerate("ab")])
    first = feed.change()
    assert first is not None
    assert first.endpoints is not None
    assert first.slots == {"default/a": 0, "default/b": 1}
    store.update_signals("default/b", EndpointSignals(waiting_requests=3.0))
    second = feed.change()
    assert second == PoolChange(None, {}, {"default/b": EndpointSignals(waiting_requests=3.0)})
