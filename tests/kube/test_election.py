"""The election on clocks of its own: who leads, when, and that no two writers win."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kube.election import Election, read_lease
from epp.kube.options import LeaseTimings

TIMINGS = LeaseTimings()


class LeaseStore:
    """What the API server keeps. A write has to name the version it read."""

    def __init__(self) -> None:
        self.obj: dict[str, Any] | None = None
        self.writes: list[tuple[float, str]] = []

    def write(self, now_s: float, version: str | None, spec: dict[str, object]) -> bool:
        current = None if self.obj is None else self.obj["metadata"]["resourceVersion"]
        if version != current:
            return False
        self.writes.append((now_s, str(spec["holderIdentity"])))
        self.obj = {"metadata": {"resourceVersion": str(len(self.writes))}, "spec": spec}
        return True


class Candidate:
    """One picker: its clock is ahead by `skew_s`, and each of its requests takes `delay_s`."""

    def __init__(self, name: str, store: LeaseStore, skew_s: float) -> None:
        self.name = name
        self.election = Election(name, TIMINGS)
        self.alive = True
        self._store = store
        self._skew_s = skew_s

    def act(self, now_s: float) -> float:
        """One round, as the I/O around it does; returns how long to wait for the next."""
        clock_s = now_s + self._skew_s
        if not self.election.is_leader:
            self._look(clock_s)
        if self.election.may_take(clock_s):
            version, spec = self.election.version, self.election.ours(f"wall {now_s:.3f}")
            self._store.write(now_s, version, spec)
            self._look(clock_s)  # what it says now: ours, or that of who was faster
        return self.election.wait_s(clock_s)

    def give_back(self, now_s: float) -> None:
        self._store.write(now_s, self.election.version, self.election.given_back("wall"))
        self.alive = False

    def _look(self, clock_s: float) -> None:
        self.election.saw(None if self._store.obj is None else read_lease(self._store.obj), clock_s)


class Run:
    def __init__(self, seed: int, count: int = 3) -> None:
        self._rng = random.Random(seed)
        self.store = LeaseStore()
        self.candidates = [Candidate(f"c{i}", self.store, self._rng.uniform(-1e6, 1e6)) for i in range(count)]
        self.now_s = 0.0
        self._due = {c.name: self._rng.uniform(0, 0.5) for c in self.candidates}

    def until(self, end_s: float) -> None:
        while True:
            living = [c for c in self.candidates if c.alive]
            nearest = min(living, key=lambda c: self._due[c.name])
            if self._due[nearest.name] > end_s:
                self.now_s = end_s
                return
            self.now_s = self._due[nearest.name]
            self._due[nearest.name] = self.now_s + max(0.05, nearest.act(self.now_s)) + self._rng.uniform(0, 0.1)

    def leaders(self) -> list[Candidate]:
        return [c for c in self.candidates if c.alive and c.election.is_leader]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.floats(5, 9))
def test_a_killed_leader_is_succeeded_within_five_seconds_whatever_the_clocks_say(seed: int, killed_s: float) -> None:
    run = Run(seed)
    run.until(killed_s)
    (leader,) = run.leaders()
    leader.alive = False
    run.until(killed_s + 5)
    (successor,) = run.leaders()
    assert successor is not leader
    run.until(killed_s + 60)
    assert run.leaders() == [successor]  # and it stays
    assert read_lease(run.store.obj or {}).transitions == 1


@given(st.integers(0, 2**32))
def test_a_lease_given_back_is_taken_at_the_next_look(seed: int) -> None:
    run = Run(seed)
    run.until(5)
    (leader,) = run.leaders()
    leader.give_back(run.now_s)
    run.until(5 + TIMINGS.retry_s + 0.2)
    assert len(run.leaders()) == 1


@given(st.integers(0, 2**32))
def test_nobody_writes_into_a_lease_that_is_renewed(seed: int) -> None:
    run = Run(seed)
    run.until(60)
    assert len({name for _, name in run.store.writes}) == 1


def test_of_two_who_write_at_once_one_wins() -> None:
    store = LeaseStore()
    a, b = Candidate("a", store, 0), Candidate("b", store, 0)
    a.election.saw(None, 0)
    b.election.saw(None, 0)
    assert a.act(0) == TIMINGS.retry_s
    assert not store.write(0, b.election.version, b.election.ours("wall"))
    b.act(0)
    assert (a.election.is_leader, b.election.is_leader, b.election.leader) == (True, False, "a")


def test_a_leader_that_wakes_up_late_learns_from_its_next_write_that_another_leads() -> None:
    store = LeaseStore()
    a, b = Candidate("a", store, 0), Candidate("b", store, 0)
    a.act(0)
    for tick in range(60):  # b looks on while a sleeps
        b.act(tick / 10)
    assert b.election.is_leader
    assert a.election.is_leader  # it has not heard yet
    a.act(6)
    assert not a.election.is_leader


@pytest.mark.parametrize("spec", [None, {}, {"holderIdentity": 3, "leaseDurationSeconds": "x"}], ids=str)
def test_a_lease_that_makes_no_sense_can_be_taken(spec: Any) -> None:
    election = Election("a", TIMINGS)
    election.saw(read_lease({"metadata": {"resourceVersion": "7"}, "spec": spec}), 0)
    assert election.may_take(0)
    assert election.version == "7"
