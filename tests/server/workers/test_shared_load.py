"""What several processes have in flight, added up: whatever they do, in whatever order, and whoever dies."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.ledger import InFlight, Ledger
from epp.pool.snapshot import Snapshot
from epp.pool.static import parse_endpoints
from epp.pool.store import PoolStore
from epp.server.workers import shared_load
from epp.server.workers.shared_load import SharedLoad, Slots

WORKERS = 3
ADDRESSES = [f"10.0.0.{i}:8000" for i in range(1, 6)]
workers = st.integers(0, WORKERS - 1)


class Picker(RuleBasedStateMachine):
    """Three workers and a parent in one process, beside one plain ledger that is told everything."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = shared_load.create(WORKERS)
        self.slots = Slots()
        self.parent = SharedLoad(self.memory, WORKERS, None)
        self.views = [SharedLoad(self.memory, WORKERS, number) for number in range(WORKERS)]
        self.ledgers = [Ledger(view) for view in self.views]
        self.all = Ledger(self.parent)
        self.truth = Ledger()
        self.open: list[tuple[int, str, str]] = []  # worker, key, endpoint
        self.count = 0
        self.store = PoolStore()
        self.replace_pool(ADDRESSES[:3])

    def teardown(self) -> None:
        os.close(self.memory)

    @property
    def snapshot(self) -> Snapshot:
        return self.store.snapshot()

    @rule(addresses=st.lists(st.sampled_from(ADDRESSES), max_size=5, unique=True))
    def replace_pool(self, addresses: list[str]) -> None:
        self.store.replace(parse_endpoints(",".join(addresses)) if addresses else ())
        slots = self.slots.of(self.snapshot.row_by_id)
        self.parent.assign(slots)
        for view, ledger in zip(self.views, self.ledgers, strict=True):
            view.assign(slots)
            ledger.publish()

    @rule(worker=workers, at=st.integers(0, 4), prefill=st.integers(0, 900), output=st.integers(0, 90))
    def reserve(self, worker: int, at: int, prefill: int, output: int) -> None:
        if not len(self.snapshot):
            return
        endpoint = self.snapshot.endpoints[at % len(self.snapshot)].id
        self.count += 1
        key = f"stream-{self.count}"
        for ledger in (self.ledgers[worker], self.truth):
            ledger.reserve(key, endpoint, prefill_tokens=prefill, output_tokens=output, context_tokens=prefill + output)
        self.open.append((worker, key, endpoint))

    @rule(which=st.integers(0, 50))
    def first_token(self, which: int) -> None:
        if self.open:
            worker, key, _ = self.open[which % len(self.open)]
            self.ledgers[worker].first_token(key)
            self.truth.first_token(key)

    @rule(which=st.integers(0, 50), to=st.integers(0, 4))
    def move(self, which: int, to: int) -> None:
        if self.open and len(self.snapshot):
            worker, key, endpoint = self.open.pop(which % len(self.open))
            other = self.snapshot.endpoints[to % len(self.snapshot)].id
            for ledger in (self.ledgers[worker], self.truth):
                ledger.move(key, endpoint, other)
            self.open.append((worker, key, other))

    @rule(which=st.integers(0, 50))
    def release(self, which: int) -> None:
        if self.open:
            worker, key, _ = self.open.pop(which % len(self.open))
            assert self.ledgers[worker].release(key)
            self.truth.release(key)

    @rule(worker=workers)
    def die(self, worker: int) -> None:
        """Without a word; the next one of this number begins with nothing."""
        for _, key, _ in [entry for entry in self.open if entry[0] == worker]:
            self.truth.release(key)
        self.open = [entry for entry in self.open if entry[0] != worker]
        self.parent.wipe(worker)
        self.views[worker] = SharedLoad(self.memory, WORKERS, worker)
        self.views[worker].assign(self.slots.of(self.snapshot.row_by_id))
        self.ledgers[worker] = Ledger(self.views[worker])

    @invariant()
    def everybody_sees_all_of_it(self) -> None:
        expected = self.truth.load(self.snapshot)
        for ledger in (*self.ledgers, self.all):
            load = ledger.load(self.snapshot)
            for seen, true in zip(load, expected, strict=True):
                assert seen.tolist() == true.tolist()
            for endpoint in self.snapshot.endpoints:
                assert ledger.in_flight(endpoint.id) == self.truth.in_flight(endpoint.id)


Picker.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestPicker = Picker.TestCase


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_load.create(2)
    yield descriptor
    os.close(descriptor)


def test_endpoints_beyond_the_slots_are_counted_by_their_own_process_alone(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_load, "SLOTS", 2)
    snapshot = Snapshot.build(tuple(parse_endpoints(",".join(ADDRESSES[:3]))))
    slots = Slots().of(snapshot.row_by_id)
    assert sorted(slots.values()) == [0, 1]
    views = [SharedLoad(memory, 2, number) for number in range(2)]
    ledgers = [Ledger(view) for view in views]
    for view in views:
        view.assign(slots)
    for number, endpoint in enumerate(snapshot.endpoints):
        ledgers[0].reserve(f"stream-{number}", endpoint.id, prefill_tokens=10)
    assert ledgers[0].load(snapshot).requests.tolist() == [1, 1, 1]
    assert ledgers[1].load(snapshot).requests.tolist() == [1, 1, 0]
    assert ledgers[1].in_flight(snapshot.endpoints[2].id) == InFlight(0, 0)


def test_a_slot_that_was_given_back_is_given_out_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_load, "SLOTS", 4)
    slots = Slots()
    assert slots.of(["a", "b"]) == {"a": 0, "b": 1}
    assert slots.of(["b"]) == {"b": 1}
    assert slots.of(["b", "c", "d"]) == {"b": 1, "c": 2, "d": 3}
    assert slots.of(["b", "c", "d", "e"]) == {"b": 1, "c": 2, "d": 3, "e": 0}
