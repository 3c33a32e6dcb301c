"""A worker as its parent sees it: what it is asked, what is kept from it, when it hangs, how soon it comes again."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from epp.observe.records import Selection
from epp.server.workers import link as link_module
from epp.server.workers.channel import Channel, Frame, packed
from epp.server.workers.handoff import take_over
from epp.server.workers.link import Link
from epp.server.workers.messages import Answer, Kind, Question


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Far:
    """The worker's end."""

    def __init__(self, channel: int, handoff: int) -> None:
        self._socket = socket.socket(fileno=channel)
        self.handoff = socket.socket(fileno=handoff)
        self.handoff.setblocking(False)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.channel = Channel(self.frames.put_nowait, lambda: None)

    async def live(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self._socket)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def heard() -> asyncio.Queue[Frame]:
    return asyncio.Queue()


@pytest.fixture
async def link(clock: Clock, heard: asyncio.Queue[Frame]) -> Link:
    return Link(3, lambda _, frame: heard.put_nowait(frame), clock)


@pytest.fixture
async def far(link: Link) -> AsyncIterator[Far]:
    far = Far(*await link.open())
    link.pid = os.getpid()
    await far.live()
    yield far
    far.channel.close()
    far.handoff.close()
    link.ended()


async def test_it_tells_of_itself(link: Link, far: Far, heard: asyncio.Queue[Frame]) -> None:
    assert not link.ready
    far.channel.send(Kind.READY)
    far.channel.send(Kind.CONNECTIONS, 5)
    async with asyncio.timeout(20):
        assert [(await heard.get()).kind for _ in range(2)] == [Kind.READY, Kind.CONNECTIONS]
    assert (link.ready, link.connections) == (True, 5)
    far.channel.close()
    async with asyncio.timeout(20):
        await link.lost.wait()
    link.ended()
    assert (link.ready, link.connections, link.pid) == (False, 0, None)
    link.send(Kind.SHED, 1)  # into nothing


async def test_answers_find_their_questions(link: Link, far: Far) -> None:
    few = Selection(most=3, x_request_id="a")
    asked = [asyncio.create_task(question) for question in (link.ask("state", 20, few), link.ask("plugins", 20))]
    questions = [(await far.frames.get()).open() for _ in asked]
    assert questions == [Question(1, "state", few), Question(2, "plugins")]
    for number in (9, 2, 1):
        far.channel.send(Kind.ANSWER, Answer(number, f"to {number}"))
    assert await asyncio.gather(*asked) == ["to 1", "to 2"]


async def test_who_dies_or_says_nothing_answers_nothing(link: Link, far: Far) -> None:
    with pytest.raises(TimeoutError):
        await link.ask("state", 0.01)
    asked = asyncio.create_task(link.ask("state", 20))
    await asyncio.sleep(0)
    link.ended()
    with pytest.raises(TimeoutError):
        await asked


async def test_a_connection_that_is_handed_over_counts_at_once(link: Link, far: Far) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert link.hand_over(theirs, 1)
        assert link.connections == 1
        taken = take_over(far.handoff)
        assert taken is not None
        assert taken[1] == 1
        taken[0].close()
    link.ended()
    with socket.socket() as another:
        assert not link.hand_over(another, 0)


async def test_who_reads_nothing_hangs_and_is_spared_the_news(
    link: Link, far: Far, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MOST_UNSENT_CHANGES_BYTES", 2_000_000)
    monkeypatch.setattr(link_module, "MOST_UNSENT_BYTES", 4_000_000)
    link.write(packed(Kind.POOL, 0, bytes(3_000_000)))  # nobody runs the other end within this turn
    assert not link.hangs
    link.tell(packed(Kind.TOLD, 0, bytes(3_000_000)))
    assert not link.hangs
    link.write(packed(Kind.POOL, 0, bytes(3_000_000)))
    assert link.hangs


async def test_who_says_nothing_for_long_hangs(link: Link, far: Far, clock: Clock, heard: asyncio.Queue[Frame]) -> None:
    clock.now_s += 29
    assert not link.hangs
    far.channel.send(Kind.CONNECTIONS, 1)
    async with asyncio.timeout(20):
        await heard.get()
    clock.now_s += 29
    assert not link.hangs
    clock.now_s += 2
    assert link.hangs
    link.ended()
    assert not link.hangs


async def test_short_lives_are_followed_by_ever_longer_pauses(link: Link, clock: Clock) -> None:
    async def life(seconds: float) -> float:
        ends = await link.open()
        for end in ends:
            os.close(end)
        clock.now_s += seconds
        link.ended()
        return link.pause_s()

    assert [await life(1) for _ in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert await life(11) == 0
    assert await life(1) == 0.1
    assert link.lives == 12
