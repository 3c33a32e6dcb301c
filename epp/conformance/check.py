"""What a check is: one clause of the protocol, its level, and a small coroutine that demands it of a target."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from epp.conformance.connection import Connection, Target
from epp.conformance.http import HttpMessage
from epp.conformance.manner import PLAIN, Manner
from epp.conformance.stub import NOTHING, Envoy, Outcome


class Level(StrEnum):
    MUST = "MUST"
    SHOULD = "SHOULD"


class Failed(Exception):
    """The target does not do what the clause demands. The text is a sentence that says what it did instead."""


class NotApplicable(Exception):
    """The clause cannot be put to this target as it is configured or reachable. The text says what it would take."""


def expect(condition: object, otherwise: str) -> None:
    """Raise `Failed` with this sentence unless the condition holds."""
    if not condition:
        raise Failed(otherwise)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What is known of the target, beyond its address. What is not known cannot be checked.

    Attributes:
        pool: addresses that the target is configured to choose from; empty: unknown.
        destinations: how many endpoints it is configured to name per request; `None`: unknown.
        max_body_bytes: the largest request body that it takes; `None`: unknown.
        sheddable_objective: name of an objective of negative priority; `None`: there is none.
        saturating_streams: so many requests in flight saturate the pool.
        test_plugins: it runs the conformance test plugins, which steer by header and tell the served endpoint.
        health: where its health service listens besides the target itself.
        metrics_url: its Prometheus page.
        pid: its process, which may then be told to drain.
    """

    pool: Sequence[str] = ()
    destinations: int | None = None
    max_body_bytes: int | None = None
    sheddable_objective: str | None = None
    saturating_streams: int = 64
    test_plugins: bool = False
    health: Target | None = None
    metrics_url: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """What a check works with.

    Attributes:
        envoy: connected to the target; a new connection for each check.
    """

    target: Target
    envoy: Envoy
    known: Expectations
    timeout_s: float

    async def exchange(self, request: HttpMessage, response: HttpMessage = NOTHING, manner: Manner = PLAIN) -> Outcome:
        return await self.envoy.exchange(request, response, manner)

    async def routed(self, request: HttpMessage, response: HttpMessage = NOTHING, manner: Manner = PLAIN) -> Outcome:
        """An exchange in which the request must be sent on."""
        outcome = await self.exchange(request, response, manner)
        expect(outcome.answered is None, f"The request was answered with {outcome.answered} instead of being routed.")
        expect(
            outcome.destination or outcome.metadata_destination,
            "No destination was named, neither in the header nor in the metadata.",
        )
        return outcome

    async def refused(self, status: int, request: HttpMessage, manner: Manner = PLAIN) -> Outcome:
        """An exchange that the picker must answer itself, with this HTTP status."""
        outcome = await self.exchange(request, NOTHING, manner)
        expect(outcome.answered is not None, f"The request was routed; the answer must be {status}.")
        expect(outcome.answered == status, f"The answer was {outcome.answered}; it must be {status}.")
        return outcome

    def pool(self) -> Sequence[str]:
        if not self.known.pool:
            raise NotApplicable("needs --endpoints, the pool that the target is configured for")
        return self.known.pool

    @asynccontextmanager
    async def health(self, target: Target) -> AsyncIterator[Connection]:
        async with Connection(target, self.timeout_s) as connection:
            yield connection


Body = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """
    Attributes:
        name: in lower case with dashes, unique.
        group: which part of the protocol.
        demand: the clause, as a sentence.
    """

    name: str
    group: str
    level: Level
    demand: str
    body: Body


def must(body: Body) -> Check:
    """Make a check of a coroutine function: its name is the check's, its docstring the clause."""
    return _check(body, Level.MUST)


def should(body: Body) -> Check:
    """The same for what a picker ought to do, and what one can live without."""
    return _check(body, Level.SHOULD)


def _check(body: Body, level: Level) -> Check:
    name = body.__name__.replace("_", "-")
    group = body.__module__.rpartition(".")[2].replace("_", " ")
    demand = " ".join((body.__doc__ or "").split())
    return Check(name, group, level, demand, body)
