"""Deadlines pass when they are due, in order, with one timer for all."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from picker_in_memory import Clock

from epp.server.deadlines import Deadlines


@dataclass(eq=False)
class Owner:
    clock: Clock
    passed_s: list[float] = field(default_factory=list)

    def expired(self) -> None:
        self.passed_s.append(self.clock.now_s)


STEPS = st.lists(st.tuples(st.sampled_from(["set", "take back", "wait"]), st.integers(0, 5)), max_size=40)


@given(STEPS)
def test_each_deadline_passes_once_and_in_time_unless_taken_back(steps) -> None:
    clock = Clock(0.0)
    deadlines = Deadlines(10.0, clock, clock.call_later)
    owners = [Owner(clock) for _ in range(6)]
    expected: list[list[float]] = [[] for _ in owners]
    due_s: dict[int, float] = {}
    for step, number in steps:
        if step == "set" and number not in due_s:
            deadlines.set(owners[number], clock.now_s)
            due_s[number] = clock.now_s + 10.0
        elif step == "take back":
            deadlines.take_back(owners[number])
            due_s.pop(number, None)
        elif step == "wait":
            for _ in range(number):
                clock.advance(1.0)
                for other in [n for n, at_s in due_s.items() if at_s <= clock.now_s]:
                    expected[other].append(due_s.pop(other))
        assert len(deadlines) == len(due_s)
        assert clock.pending <= 1
    assert [owner.passed_s for owner in owners] == expected


def test_an_owner_may_set_another_when_one_has_passed() -> None:
    clock = Clock(0.0)
    deadlines = Deadlines(10.0, clock, clock.call_later)

    class Again(Owner):
        def expired(self) -> None:
            super().expired()
            deadlines.set(self, clock.now_s)

    owner = Again(clock)
    deadlines.set(owner, clock.now_s)
    for _ in range(35):
        clock.advance(1.0)
    assert owner.passed_s == [10.0, 20.0, 30.0]
    assert clock.pending == 1
