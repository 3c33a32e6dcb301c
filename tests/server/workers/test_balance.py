"""Connections are shared out evenly, and evened out after a restart."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from epp.server.workers.balance import UNEVEN, in_turn, to_let_go


@dataclass
class Worker:
    connections: int
    given: int = 0
    ready: bool = True


def test_the_fewest_first_and_of_several_who_got_one_longest_ago() -> None:
    few, many, recent, dead = Worker(1, 3), Worker(5, 1), Worker(1, 7), Worker(0, 0, ready=False)
    assert in_turn([recent, many, dead, few]) == [few, recent, many]
    assert to_let_go([dead]) is None
    assert to_let_go([]) is None


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_letting_go_ends_and_leaves_them_even(connections: list[int]) -> None:
    """As Envoy does, each connection that is let go of is opened anew."""
    workers, rounds = [Worker(count) for count in connections], 0
    while (uneven := to_let_go(workers)) is not None:
        worker, count = uneven
        worker.connections -= count
        for _ in range(count):
            in_turn(workers)[0].connections += 1
        rounds += 1
        assert rounds <= 40
    assert sum(worker.connections for worker in workers) == sum(connections)
    assert max(w.connections for w in workers) - min(w.connections for w in workers) < UNEVEN
