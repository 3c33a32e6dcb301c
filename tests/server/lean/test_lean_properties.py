"""Whatever pieces a conversation comes in it is the same, and whatever comes the connection stays in bounds."""

import itertools
import struct
import sys

from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lean_peers import PREFACE, Client, Server, block, framed, greeted

from epp.server.lean.limits import LeanOptions

BLOCK = block()
HANDSHAKE = PREFACE + SettingsFrame(0).serialize() + SettingsFrame(0, flags=["ACK"]).serialize()

messages = st.lists(st.binary(max_size=400).filter(lambda m: m not in (b"garbage", b"bug")), max_size=8)


@st.composite
def pieces(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)]


def frames_of(stream_id: int, parts: list[bytes], padding: int) -> bytes:
    out = [HeadersFrame(stream_id, BLOCK, flags=["END_HEADERS"]).serialize()]
    for part in parts:
        frame = DataFrame(stream_id, part, flags=["PADDED"] if padding else [], pad_length=padding)
        out.append(frame.serialize())
    out.append(DataFrame(stream_id, b"", flags=["END_STREAM"]).serialize())
    return b"".join(out)


@given(said=messages, padding=st.integers(0, 255), draw=st.data())
@settings(max_examples=60, deadline=None)
def test_frames_and_reads_may_be_cut_anywhere(said: list[bytes], padding: int, draw: st.DataObject) -> None:
    sent = frames_of(1, draw.draw(pieces(framed(*said))), padding)
    server = Server()
    for piece in draw.draw(pieces(HANDSHAKE + sent)):
        server.talk(piece)
    expected = said[: said.index(b"last") + 1] if b"last" in said else said
    (exchange,) = server.exchanges
    assert exchange.received == expected
    assert exchange.closings == [False]
    assert server.codes == ["OK"]


@given(noise=st.lists(st.binary(max_size=300), max_size=20))
@settings(max_examples=150, deadline=None)
def test_noise_after_the_handshake_never_raises_and_never_leaves_a_stream_open(noise: list[bytes]) -> None:
    server = greeted(Server())
    for piece in noise:
        server.talk(piece)
    server.connection.lost()
    server.assert_each_closed_once()


frame_like = st.builds(
    lambda kind, flags, stream_id, payload: struct.pack(">HBBBI", 0, len(payload), kind, flags, stream_id) + payload,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x25, 0x2D, 255]),
    st.integers(0, 7),
    st.one_of(st.sampled_from([BLOCK, bytes(4), bytes(5), bytes(8), framed(b"a")]), st.binary(max_size=60)),
)


@given(frames=st.lists(frame_like, max_size=40))
@settings(max_examples=250, deadline=None)
def test_frames_at_random_never_raise_and_every_exchange_is_closed_once(frames: list[bytes]) -> None:
    server = greeted(Server())
    for frame in frames:
        server.talk(frame)
    server.connection.lost()
    server.assert_each_closed_once()


@given(noise=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_header_block_does_more_than_end_its_connection(noise: bytes) -> None:
    server = greeted(Server())
    server.talk(HeadersFrame(1, noise, flags=["END_HEADERS", "END_STREAM"]).serialize())
    server.connection.lost()
    server.assert_each_closed_once()


class Conversation(RuleBasedStateMachine):
    """A lawful client with small windows on several streams: every reply arrives whole and in order, every exchange is
    closed once, and nobody sees an error."""

    def __init__(self) -> None:
        super().__init__()
        options = LeanOptions(stream_window_bytes=70_000, high_water_bytes=5_000, max_concurrent_streams=100)
        self.client = Client(Server(options), window=500)
        self.client.auto_window = False
        self.sent: dict[int, list[bytes]] = {}
        self.open: set[int] = set()
        self.ended: set[int] = set()
        self.reset: set[int] = set()

    @precondition(lambda self: len(self.sent) < 12)
    @rule()
    def begin(self) -> None:
        stream = self.client.open()
        self.sent[stream] = []
        self.open.add(stream)

    @precondition(lambda self: self.open)
    @rule(draw=st.data(), size=st.integers(1, 3_000), padding=st.sampled_from([None, 1, 200]))
    def say(self, draw: st.DataObject, size: int, padding: int | None) -> None:
        stream = draw.draw(st.sampled_from(sorted(self.open)))
        if self.client.h2.local_flow_control_window(stream) > size + 5 + 201:
            message = bytes([len(self.sent[stream]) % 256]) * size
            self.sent[stream].append(message)
            self.client.send(stream, framed(message), padding=padding)

    @precondition(lambda self: self.open)
    @rule(draw=st.data())
    def half_close(self, draw: st.DataObject) -> None:
        stream = draw.draw(st.sampled_from(sorted(self.open)))
        self.client.send(stream, b"", end=True)
        self.open.discard(stream)
        self.ended.add(stream)

    @precondition(lambda self: self.open)
    @rule(draw=st.data())
    def cancel(self, draw: st.DataObject) -> None:
        stream = draw.draw(st.sampled_from(sorted(self.open)))
        self.client.h2.reset_stream(stream, 8)
        self.client.pump()
        self.open.discard(stream)
        self.reset.add(stream)

    @rule(draw=st.data(), increment=st.integers(1, 5_000))
    def allow(self, draw: st.DataObject, increment: int) -> None:
        waiting = [s for s in self.sent if s not in self.reset and self.client.status(s) is None]
        if waiting:
            stream = draw.draw(st.sampled_from(waiting))
            self.client.h2.increment_flow_control_window(increment, stream)
        self.client.h2.increment_flow_control_window(increment)
        self.client.pump()

    @rule(window=st.integers(0, 2_000))
    def resize(self, window: int) -> None:
        self.client.h2.update_settings({0x4: window})
        self.client.pump()

    @invariant()
    def nobody_complains(self) -> None:
        assert not self.client.goaways
        assert not self.client.resets

    def teardown(self) -> None:
        for stream in sorted(self.open):
            self.client.send(stream, b"", end=True)
            self.ended.add(stream)
        self.client.h2.increment_flow_control_window(2**30)
        for stream in self.ended:
            if self.client.status(stream) is None:
                self.client.h2.increment_flow_control_window(2**29, stream)
        self.client.pump()
        for stream in self.ended:
            assert self.client.messages(stream) == self.sent[stream]
            assert self.client.status(stream) == "0"
        self.client.server.assert_each_closed_once()
        closings = [exchange.closings for exchange in self.client.server.exchanges]
        assert closings == [[stream in self.reset] for stream in self.sent]


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_thousands_of_streams_leave_nothing_behind() -> None:
    server = greeted(Server())

    def streams(first: int, count: int) -> None:
        for i in range(first, first + 2 * count, 2):
            server.talk(frames_of(i, [framed(b"hello")], 0) if i % 4 == 1 else opened_and_reset(i))
            server.talk(WindowUpdateFrame(0, 10).serialize())
        server.exchanges.clear()
        server.codes.clear()

    def opened_and_reset(stream_id: int) -> bytes:
        begun = HeadersFrame(stream_id, BLOCK, flags=["END_HEADERS"]).serialize()
        said = DataFrame(stream_id, framed(b"hello")[:9] + framed(b"silence")).serialize()
        return begun + said + RstStreamFrame(stream_id, error_code=8).serialize()

    streams(1, 2_500)  # the interpreter keeps two thousand small tuples for use again
    before = sys.getallocatedblocks()
    streams(5_001, 2_000)
    assert sys.getallocatedblocks() - before < 500
