"""The order in which a process ends."""

import asyncio

import pytest

from epp.server.drain import Shutdown, drain
from epp.server.health import HealthState


class FakeTransport:
    port = None

    def __init__(self, health: HealthState, stream_s: float) -> None:
        self.health = health
        self.stream_s = stream_s
        self.events: list[str] = []
        self.stopped = asyncio.Event()

    async def start(self) -> None: ...

    async def drain(self, grace_s: float) -> None:
        self.events.append(f"drain {grace_s:g} draining={self.health.draining}")
        try:
            await asyncio.wait_for(self.stopped.wait(), min(self.stream_s, grace_s))
        except TimeoutError:
            return

    async def stop(self) -> None:
        self.events.append("stop")
        self.stopped.set()


@pytest.fixture
async def health() -> HealthState:
    return HealthState(list)


async def test_readiness_goes_first_and_streams_are_still_taken_for_a_while(health: HealthState) -> None:
    transport = FakeTransport(health, stream_s=0.01)
    ending = asyncio.create_task(drain(health, [transport], Shutdown(), drain_timeout_s=0.1, grace_s=5))
    await asyncio.sleep(0.02)
    assert not health.ready
    assert transport.events == []
    await asyncio.wait_for(ending, 30)
    assert transport.events == ["drain 5 draining=True", "stop"]


@pytest.mark.parametrize("when", ["before", "while serving", "while closing"])
async def test_a_second_signal_cuts_every_wait_short(health: HealthState, when: str) -> None:
    shutdown = Shutdown()
    shutdown.request()
    transport = FakeTransport(health, stream_s=60)
    if when == "before":
        shutdown.request()
    ending = asyncio.create_task(
        drain(health, [transport], shutdown, drain_timeout_s=0 if when == "while closing" else 60, grace_s=60)
    )
    await asyncio.sleep(0.05)
    shutdown.request()
    await asyncio.wait_for(ending, 30)
    assert transport.events[-1] == "stop"


async def test_the_second_terminate_and_the_first_interrupt_hurry() -> None:
    shutdown = Shutdown()
    shutdown.request()
    assert shutdown.requested.is_set()
    assert not shutdown.hurried.is_set()
    shutdown.request()
    assert shutdown.hurried.is_set()
    interrupted = Shutdown()
    interrupted.hurry()
    assert interrupted.requested.is_set()
    assert interrupted.hurried.is_set()
