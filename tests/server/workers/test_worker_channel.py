"""Frames between the parent and a worker, and what is collected before it is sent."""

import asyncio
import socket
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from epp.server.workers.batches import Batch, Clockwork
from epp.server.workers.channel import Channel, Frame, FrameReader, packed, with_header
from epp.server.workers.messages import Kind

frames = st.tuples(st.sampled_from(Kind), st.integers(0, 255), st.binary(max_size=300))


@given(st.lists(frames, max_size=8), st.data())
def test_frames_survive_being_cut_anywhere(sent: list[tuple[Kind, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(with_header(*frame) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, received = FrameReader(), list[Frame]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert received == sent


async def test_a_channel_carries_objects_both_ways_and_tells_of_its_end() -> None:
    received: dict[str, list[Frame]] = {"a": [], "b": []}
    heard, lost = asyncio.Event(), asyncio.Event()

    def on_a(frame: Frame) -> None:
        received["a"].append(frame)
        heard.set()

    a, b = Channel(on_a, lambda: None), Channel(received["b"].append, lost.set)
    loop = asyncio.get_running_loop()
    for channel, end in zip((a, b), socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda channel=channel: channel, sock=end)  # type: ignore[misc]
    large = b"x" * 5_000_000
    a.send(Kind.COUNTS, [("name", (1.0, float("inf")))])
    a.write(packed(Kind.TOLD, 3, large))
    b.send(Kind.SHED, 2)
    async with asyncio.timeout(20):
        await heard.wait()
        a.close()
        await lost.wait()
    assert [(frame.kind, frame.open()) for frame in received["a"]] == [(Kind.SHED, 2)]
    assert [(frame.kind, frame.worker) for frame in received["b"]] == [(Kind.COUNTS, 255), (Kind.TOLD, 3)]
    assert received["b"][0].open() == [("name", (1.0, float("inf")))]
    assert received["b"][1].open() == large
    b.send(Kind.READY)  # into nothing


def test_a_batch_is_sent_at_once_after_a_quiet_time_and_not_more_often_than_it_may() -> None:
    now_s = 100.0
    timers: list[tuple[float, Callable[[], None]]] = []
    sent: list[list[int]] = []
    clockwork = Clockwork(lambda: now_s, lambda delay_s, call: timers.append((now_s + delay_s, call)))
    batch: Batch[int] = Batch(sent.append, 0.5, clockwork)
    batch.add(1)
    batch.add(2)
    assert [at_s for at_s, _ in timers] == [100.0]
    timers.pop()[1]()
    now_s = 100.1
    batch.add(3)
    batch.add(4)
    assert [at_s for at_s, _ in timers] == [100.5]
    now_s = 100.5
    timers.pop()[1]()
    batch.flush()  # nothing
    assert sent == [[1, 2], [3, 4]]
    assert not timers
