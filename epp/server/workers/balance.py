"""Which worker gets the next connection, and which lets go of some.

What is evened out is the number of connections: what will come over one is not known when it comes. Envoy opens another
as soon as one is full, so with much traffic there are many, and each carries about the same.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

UNEVEN = 2
"""So many connections more than another has, and a worker lets go of half of the difference."""


class Balanced(Protocol):
    """
    Attributes:
        ready: takes connections.
        given: a number that grows with each connection that any worker is given; that of its last.
    """

    ready: bool
    connections: int
    given: int


WorkerT = TypeVar("WorkerT", bound=Balanced)


def in_turn(workers: Iterable[WorkerT]) -> Sequence[WorkerT]:
    """Who is to be offered a connection, in this order: the fewest first, of several who got one longest ago."""
    return sorted((w for w in workers if w.ready), key=lambda w: (w.connections, w.given))


def to_let_go(workers: Iterable[WorkerT]) -> tuple[WorkerT, int] | None:
    """Who is to let go of how many connections, so that they come to others; `None`: it is even enough.

    One that was started anew has none, and its peers have what it had before.
    """
    ready = in_turn(workers)
    if not ready or (more := ready[-1].connections - ready[0].connections) < UNEVEN:
        return None
    return ready[-1], more // 2
