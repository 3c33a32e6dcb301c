"""One connection in memory: what it promises to a good client, and what a bad one gets."""

import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from lean_peers import PREFACE, REQUEST, Client, Server, block, framed, greeted, parse

from epp.server.lean.frames import ErrorCode
from epp.server.lean.limits import LeanOptions


def opening(stream_id: int = 1, *flags: str) -> bytes:
    return HeadersFrame(stream_id, block(), flags=["END_HEADERS", *flags]).serialize()


def data(stream_id: int, payload: bytes, *flags: str) -> bytes:
    return DataFrame(stream_id, payload, flags=list(flags)).serialize()


def raw(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 255, kind, flags, stream_id) + payload


def kinds(answer: bytes) -> list[Any]:
    return [type(frame) for frame in parse(answer)]


# --- a good client ----------------------------------------------------------------------------------------------------


def test_messages_are_answered_in_order_and_a_half_close_ends_with_ok() -> None:
    client = Client(Server())
    stream = client.open()
    client.send(stream, framed(b"a", b"b"))
    client.send(stream, framed(b"c"), end=True)
    assert client.messages(stream) == [b"a", b"b", b"c"]
    assert client.status(stream) == "0"
    assert client.resets == {}
    assert client.server.exchanges[0].closings == [False]
    client.server.assert_each_closed_once()


def test_everything_that_one_read_causes_is_one_write_in_order() -> None:
    server = greeted(Server())
    answer = server.talk(opening() + data(1, framed(b"a")) + data(1, framed(b"b", b"c"), "END_STREAM"))
    first, *frames, last = parse(answer)
    assert (type(first), type(last)) == (HeadersFrame, HeadersFrame)
    assert b"".join(frame.data for frame in frames) == framed(b"a", b"b", b"c")
    assert server.wakes == 0


def test_a_stream_that_says_nothing_is_answered_by_trailers_alone() -> None:
    server = greeted(Server())
    assert kinds(server.talk(opening(1, "END_STREAM"))) == [HeadersFrame]
    assert server.codes == ["OK"]


def test_a_message_is_put_together_from_any_number_of_frames() -> None:
    client = Client(Server())
    stream = client.open()
    message = bytes(range(256)) * 2
    for byte in framed(message):
        client.send(stream, bytes([byte]))
    assert client.messages(stream) == [message]


def test_padding_is_no_data_but_counts_for_the_window() -> None:
    client = Client(Server(LeanOptions(stream_window_bytes=20_000)))
    stream = client.open()
    for _ in range(200):
        client.send(stream, framed(b"ab"), padding=255)
    assert client.messages(stream) == [b"ab"] * 200


def test_a_body_larger_than_every_window_passes_both_ways() -> None:
    client = Client(Server())
    stream = client.open()
    message = bytes(5_000_000)
    client.send(stream, framed(message), end=True)
    assert client.messages(stream) == [message]
    assert client.status(stream) == "0"


def test_an_end_of_our_own_tells_the_peer_to_send_no_more() -> None:
    client = Client(Server())
    stream = client.open()
    client.send(stream, framed(b"last"))
    assert client.messages(stream) == [b"last"]
    assert client.status(stream) == "0"
    assert client.resets == {stream: ErrorCode.NO_ERROR}
    client.server.assert_each_closed_once()


def test_what_is_sent_between_reads_wakes_the_owner_once_to_flush() -> None:
    client = Client(Server())
    stream = client.open()
    exchange = client.server.exchanges[0]
    exchange.stream.send([b"x", b"y"])
    exchange.stream.finish()
    exchange.stream.send([b"too late"])
    assert client.server.wakes >= 1
    client.pump()
    assert client.messages(stream) == [b"x", b"y"]
    assert client.status(stream) == "0"
    exchange.stream.send([b"after the end"])
    exchange.stream.finish()
    assert exchange.closings == [False]


def test_a_header_block_in_pieces_is_read_whole() -> None:
    server = greeted(Server())
    whole = block()
    answer = server.talk(
        HeadersFrame(1, whole[:3]).serialize()
        + ContinuationFrame(1, whole[3:10]).serialize()
        + ContinuationFrame(1, whole[10:], flags=["END_HEADERS"]).serialize()
        + data(1, framed(b"a"), "END_STREAM")
    )
    assert parse(answer)[1].data == framed(b"a")


def test_a_client_that_indexes_headers_before_it_knows_our_settings_is_understood() -> None:
    server = Server()
    encoder = Encoder()  # with a dynamic table
    first, second = encoder.encode(REQUEST), encoder.encode(REQUEST)
    assert len(second) < len(first) / 2
    server.talk(PREFACE + SettingsFrame(0).serialize())
    for stream_id, headers in ((1, first), (3, second), (5, second)):
        server.talk(HeadersFrame(stream_id, headers, flags=["END_HEADERS"]).serialize())
    encoder.header_table_size = 0
    server.talk(SettingsFrame(0, flags=["ACK"]).serialize())
    third = encoder.encode(REQUEST)
    server.talk(HeadersFrame(7, third, flags=["END_HEADERS"]).serialize())
    assert len(server.exchanges) == 4
    assert not server.connection.closing


def test_trailers_of_a_client_end_its_stream() -> None:
    server = greeted(Server())
    server.talk(opening() + data(1, framed(b"a")))
    trailers = HeadersFrame(1, block([("x", "y")]), flags=["END_HEADERS", "END_STREAM"]).serialize()
    assert kinds(server.talk(trailers)) == [HeadersFrame]
    assert server.codes == ["OK"]


def test_pings_are_answered_with_their_own_content() -> None:
    (pong,) = parse(greeted(Server()).talk(PingFrame(0, b"12345678").serialize()))
    assert isinstance(pong, PingFrame)
    assert "ACK" in pong.flags
    assert pong.opaque_data == b"12345678"


def test_frames_of_unknown_kinds_and_settings_are_ignored() -> None:
    server = greeted(Server())
    settings = SettingsFrame(0, settings={0x99: 7}).serialize()
    assert kinds(server.talk(raw(0xEE, 0xFF, 77, b"what") + settings)) == [SettingsFrame]


# --- calls that are refused -------------------------------------------------------------------------------------------


def changed(**headers: str | None) -> list[tuple[str, str]]:
    fields = dict(REQUEST) | {name.replace("_", "-"): value for name, value in headers.items()}
    return [(name, value) for name, value in fields.items() if value is not None]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([*REQUEST[:2], (":path", "/other/Method"), *REQUEST[3:]], "12"),
        (changed(grpc_encoding="snappy"), "12"),
        (changed(grpc_timeout="soon"), "13"),
    ],
)
def test_calls_that_cannot_be_served_get_a_status_at_once(headers: list[tuple[str, str]], status: str) -> None:
    client = Client(Server())
    stream = client.open(headers)
    assert client.status(stream) == status
    assert client.server.exchanges == []
    assert client.resets == {stream: ErrorCode.NO_ERROR}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(":method", "GET"), *REQUEST[1:]], "405"),
        (changed(content_type="application/json"), "415"),
        (changed(content_type=None), "415"),
    ],
)
def test_requests_that_are_no_grpc_get_an_http_status(headers: list[tuple[str, str]], status: str) -> None:
    server = greeted(Server())
    answer = parse(server.talk(HeadersFrame(1, block(headers), flags=["END_HEADERS", "END_STREAM"]).serialize()))
    assert dict(Decoder().decode(answer[0].data, raw=True))[b":status"] == status.encode()
    assert server.exchanges == []


@pytest.mark.parametrize(
    "headers",
    [
        REQUEST[1:],
        REQUEST[:2] + REQUEST[3:],
        [*REQUEST, (":path", "/late")],
        [*REQUEST, ("Upper", "x")],
        [*REQUEST, ("connection", "close")],
        [*REQUEST, ("te", "gzip")],
        [*REQUEST, ("x", "a\nb")],
        [*REQUEST, ("", "x")],
        [(":unknown", "x"), *REQUEST],
    ],
)
def test_malformed_requests_are_reset_and_the_connection_lives(headers: list[tuple[str, str]]) -> None:
    server = greeted(Server())
    (reset,) = parse(server.talk(HeadersFrame(1, block(headers), flags=["END_HEADERS"]).serialize()))
    assert isinstance(reset, RstStreamFrame)
    assert reset.error_code == ErrorCode.PROTOCOL_ERROR
    assert kinds(server.talk(opening(3, "END_STREAM"))) == [HeadersFrame]


@pytest.mark.parametrize(
    ("message", "status", "code"), [(b"garbage", "3", "InvalidArgument"), (b"bug", "13", "Internal")]
)
def test_an_exchange_that_fails_ends_its_own_stream_and_no_other(message: bytes, status: str, code: str) -> None:
    client = Client(Server())
    good, bad = client.open(), client.open()
    client.send(bad, framed(b"a", message, b"never seen"))
    assert client.messages(bad) == [b"a"]
    assert client.status(bad) == status
    assert "secret" not in str(client.trailers)
    client.send(good, framed(b"a"), end=True)
    assert client.messages(good) == [b"a"]
    assert client.server.codes == [code, "OK"]
    client.server.assert_each_closed_once()


def test_a_deadline_drops_what_is_queued_and_closes_as_cancelled() -> None:
    client = Client(Server(), window=10)
    stream = client.open([*REQUEST, ("grpc-timeout", "1500m")])
    client.auto_window = False
    client.send(stream, framed(bytes(100)))
    client.server.time.advance(1.4)
    client.pump()
    assert client.status(stream) is None
    client.server.time.advance(0.2)
    client.pump()
    assert client.status(stream) == "4"
    assert client.server.codes == ["DeadlineExceeded"]
    assert client.server.exchanges[0].closings == [True]


def compressed(flag: int, payload: bytes) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("gzip", compressed(1, zlib.compress(b"hello", wbits=31)), "0"),
        ("gzip", framed(b"hello"), "0"),
        ("deflate", compressed(1, zlib.compress(b"hello")), "0"),
        ("identity", compressed(1, b"hello"), "13"),
        ("gzip", compressed(2, zlib.compress(b"hello", wbits=31)), "13"),
        ("gzip", compressed(1, b"hello"), "13"),
        ("gzip", compressed(1, zlib.compress(b"hello", wbits=31)[:-3]), "13"),
        ("gzip", compressed(1, zlib.compress(bytes(10_000_000), wbits=31)), "8"),
    ],
)
def test_compressed_messages_are_read_within_bounds(encoding: str, sent: bytes, status: str) -> None:
    client = Client(Server(LeanOptions(max_receive_bytes=100_000)))
    stream = client.open(changed(grpc_encoding=encoding))
    client.send(stream, sent, end=True)
    assert client.status(stream) == status
    assert client.messages(stream) == ([b"hello"] if status == "0" else [])


def test_a_deadline_is_told_while_others_wait_for_the_connections_window() -> None:
    client = Client(Server(), window=1_000_000)
    client.auto_window = False
    stream = client.open([*REQUEST, ("grpc-timeout", "1S")])
    client.send(stream, framed(bytes(200_000)))
    client.server.time.advance(1.1)
    client.pump()
    assert client.status(stream) == "4"
    assert client.server.connection.unsent_bytes == 0


def test_a_message_that_announces_too_much_is_refused_before_it_comes() -> None:
    client = Client(Server(LeanOptions(max_receive_bytes=1_000)))
    stream = client.open()
    client.send(stream, struct.pack(">BI", 0, 1_001))
    assert client.status(stream) == "8"
    client.server.assert_each_closed_once()


def test_a_message_that_is_cut_off_ends_with_internal() -> None:
    client = Client(Server())
    stream = client.open()
    client.send(stream, framed(b"a") + b"\0\0\0", end=True)
    assert client.messages(stream) == [b"a"]
    assert client.status(stream) == "13"


def test_unfinished_messages_of_all_streams_together_are_bounded() -> None:
    client = Client(Server(LeanOptions(max_unfinished_bytes=30_000)))
    streams = [client.open() for _ in range(4)]
    for stream in streams:
        client.send(stream, framed(bytes(20_000))[:10_000])
    assert [client.status(stream) for stream in streams] == [None, None, None, "8"]
    client.h2.reset_stream(streams[0])
    late = client.open()
    client.send(late, framed(bytes(20_000))[:9_000])
    assert client.status(late) is None
    client.send(streams[1], framed(bytes(20_000))[10_000:])
    assert client.messages(streams[1]) == [bytes(20_000)]


# --- flow control -----------------------------------------------------------------------------------------------------


def test_no_more_is_sent_than_the_windows_allow() -> None:
    """The `h2` client raises as soon as it gets a byte too many."""
    client = Client(Server(), window=1_000)
    client.auto_window = False
    stream = client.open()
    client.send(stream, framed(bytes(5_000)), end=True)
    assert len(client.data[stream]) == 1_000
    assert client.server.exchanges[0].closings == []
    for _ in range(5):
        client.h2.increment_flow_control_window(1_000, stream)
        client.pump()
    assert client.messages(stream) == [bytes(5_000)]
    assert client.status(stream) == "0"
    assert client.server.exchanges[0].closings == [False]


def test_a_window_that_the_peer_takes_back_may_fall_below_zero() -> None:
    client = Client(Server(), window=1_000)
    client.auto_window = False
    stream = client.open()
    client.send(stream, framed(bytes(5_000)))
    client.h2.update_settings({0x4: 400})
    client.pump()
    client.h2.increment_flow_control_window(600, stream)
    client.pump()
    assert len(client.data[stream]) == 1_000
    client.h2.increment_flow_control_window(1, stream)
    client.pump()
    assert len(client.data[stream]) == 1_001
    client.h2.update_settings({0x4: 2_000})
    client.pump()
    assert len(client.data[stream]) == 2_601


def test_streams_share_the_connections_window_in_turns() -> None:
    client = Client(Server(), window=10_000_000)
    client.auto_window = False
    streams = [client.open() for _ in range(3)]
    for stream in streams:
        client.send(stream, framed(bytes(200_000)))
    assert sum(len(data) for data in client.data.values()) == 65_535
    for _ in range(12):
        client.h2.increment_flow_control_window(16_384)
        client.pump()
    sent = [len(client.data.get(stream, b"")) for stream in streams]
    assert max(sent) - min(sent) <= 65_535
    client.h2.increment_flow_control_window(1_000_000)
    client.pump()
    assert [client.messages(stream) for stream in streams] == [[bytes(200_000)]] * 3


def test_a_peer_that_does_not_take_its_replies_gets_no_window_for_more() -> None:
    options = LeanOptions(stream_window_bytes=100_000, high_water_bytes=50_000)
    client = Client(Server(options), window=0)
    client.auto_window = False
    stuck, free = client.open(), client.open()
    sent = 0
    while (room := client.h2.local_flow_control_window(stuck)) >= 1_005:
        client.send(stuck, framed(bytes(1_000)))
        sent += 1
    assert sent <= 200
    client.send(free, framed(b"a"))
    client.h2.increment_flow_control_window(1_000_000, stuck)
    client.h2.increment_flow_control_window(1_000_000, free)
    client.h2.increment_flow_control_window(1_000_000)
    client.pump()
    assert client.messages(free) == [b"a"]
    assert client.messages(stuck) == [bytes(1_000)] * sent
    assert client.h2.local_flow_control_window(stuck) > room


def test_frames_are_as_large_as_the_peer_takes_and_no_larger() -> None:
    for size in (16_384, 20_000, 2**24 - 1):
        server = greeted(Server(LeanOptions(max_frame_bytes=64 * 1024)))
        server.talk(SettingsFrame(0, settings={0x5: size, 0x4: 2**20}).serialize())
        server.talk(WindowUpdateFrame(0, 2**20).serialize())
        server.talk(opening())
        server.exchanges[0].stream.send([bytes(200_000)])
        sizes = [len(f.data) for f in parse(b"".join(server.connection.take_output())) if isinstance(f, DataFrame)]
        assert sum(sizes) == 200_005
        assert max(sizes) == min(size, 64 * 1024)


# --- resets -----------------------------------------------------------------------------------------------------------


def test_a_reset_closes_the_exchange_once_as_cancelled_and_frees_the_stream() -> None:
    server = greeted(Server())
    server.talk(opening() + data(1, framed(b"a")))
    reset = RstStreamFrame(1, error_code=8).serialize()
    assert server.talk(reset) == b""
    assert server.talk(reset) == b""
    assert server.exchanges[0].closings == [True]
    assert not server.exchanges[0].lost
    assert server.codes == ["Canceled"]
    assert server.connection.open_streams == 0


def test_frames_under_way_to_a_stream_that_has_ended_do_no_harm() -> None:
    server = greeted(Server())
    server.talk(opening() + data(1, framed(b"last")))
    late = (
        data(1, framed(b"late"))
        + WindowUpdateFrame(1, 100).serialize()
        + HeadersFrame(1, block([("x", "y")]), flags=["END_HEADERS", "END_STREAM"]).serialize()
        + RstStreamFrame(1, error_code=8).serialize()
    )
    assert server.talk(late) == b""
    assert server.exchanges[0].received == [b"last"]
    server.assert_each_closed_once()


def test_a_lost_connection_closes_every_exchange_once() -> None:
    client = Client(Server())
    for _ in range(5):
        client.send(client.open(), framed(b"a"))
    client.server.connection.lost()
    client.server.connection.lost()
    assert [exchange.closings for exchange in client.server.exchanges] == [[True]] * 5
    assert all(exchange.lost for exchange in client.server.exchanges)
    client.server.assert_each_closed_once()


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (raw(8, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(8, 0, 1, b"\x7f\xff\xff\xff") * 2, ErrorCode.FLOW_CONTROL_ERROR),
        (HeadersFrame(1, block(), flags=["END_HEADERS"]).serialize(), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_an_offence_on_one_stream_resets_that_stream(frame: bytes, code: ErrorCode) -> None:
    server = greeted(Server())
    server.talk(SettingsFrame(0, settings={0x4: 0}).serialize())
    server.talk(opening() + data(1, framed(b"a"), "END_STREAM"))  # its reply waits for window
    (reset,) = [f for f in parse(server.talk(frame)) if isinstance(f, RstStreamFrame)]
    assert reset.error_code == code
    assert server.exchanges[0].closings == [True]
    assert not server.connection.closing


# --- offences that end the connection ---------------------------------------------------------------------------------


def headers_of(size: int) -> bytes:
    return block([*REQUEST, ("x", "v" * size)])


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (raw(0, 0, 1, bytes(64 * 1024 + 1)), ErrorCode.FRAME_SIZE_ERROR),
        (data(1, b"idle"), ErrorCode.PROTOCOL_ERROR),
        (raw(0, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (opening(2), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 4, 0, block()), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 0x2C, 1, b"\x09abc"), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 0x24, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (raw(1, 4, 1, b"\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (raw(1, 4, 1, b"\x3f\xe1\x1f" + block()), ErrorCode.COMPRESSION_ERROR),
        (raw(1, 4, 1, b"\x20" * 1_000 + block()), ErrorCode.COMPRESSION_ERROR),
        (raw(1, 4, 1, headers_of(30_000)), ErrorCode.ENHANCE_YOUR_CALM),
        (raw(1, 4, 1, block([*REQUEST, *[("x", "y")] * 200])), ErrorCode.ENHANCE_YOUR_CALM),
        (raw(1, 4, 1, b"\x82" * 1_000), ErrorCode.COMPRESSION_ERROR),
        (opening(1) + raw(0, 8, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (raw(9, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 0, 1, b"") + raw(9, 4, 3, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 0, 1, b"") + PingFrame(0, bytes(8)).serialize(), ErrorCode.PROTOCOL_ERROR),
        (raw(1, 0, 1, b"") + raw(9, 0, 1, bytes(10_000)) * 2, ErrorCode.ENHANCE_YOUR_CALM),
        (raw(1, 0, 1, b"") + raw(9, 0, 1, b"") * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (raw(2, 0, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (raw(3, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(3, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(3, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(4, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(4, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (raw(4, 1, 0, b"\0\x04\0\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (raw(4, 0, 0, struct.pack(">HI", 2, 2)), ErrorCode.PROTOCOL_ERROR),
        (raw(4, 0, 0, struct.pack(">HI", 4, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
        (raw(4, 0, 0, struct.pack(">HI", 5, 16_383)), ErrorCode.PROTOCOL_ERROR),
        (raw(4, 0, 0, struct.pack(">HI", 5, 2**24)), ErrorCode.PROTOCOL_ERROR),
        (PushPromiseFrame(1, 2, b"", flags=["END_HEADERS"]).serialize(), ErrorCode.PROTOCOL_ERROR),
        (raw(6, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (raw(6, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(7, 0, 0, bytes(7)), ErrorCode.PROTOCOL_ERROR),
        (raw(8, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(8, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(8, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (WindowUpdateFrame(0, 2**31 - 1).serialize(), ErrorCode.FLOW_CONTROL_ERROR),
        (PingFrame(0, bytes(8)).serialize() * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (SettingsFrame(0).serialize() * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (PriorityFrame(1, depends_on=3, stream_weight=1).serialize() * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (raw(0xEE, 0, 0, b"") * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (opening(1) + data(1, b"") * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (opening(1) + raw(0, 8, 1, b"\x04" + bytes(4)) * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (opening(1) + data(1, b"", "END_STREAM") + raw(1, 5, 1, block()) * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
        (opening(1) + raw(7, 0, 0, bytes(8)) * 1_001, ErrorCode.ENHANCE_YOUR_CALM),
    ],
)
def test_a_broken_protocol_ends_the_connection_with_the_reason(frames: bytes, code: ErrorCode) -> None:
    server = greeted(Server())
    goaway = parse(server.talk(frames))[-1]
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.error_code == code
    assert server.connection.closing
    assert server.talk(opening(201)) == b""
    server.assert_each_closed_once()


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + PingFrame(0, bytes(8)).serialize(), bytes(100)])
def test_whoever_does_not_begin_as_http2_is_sent_away(first: bytes) -> None:
    server = Server()
    assert kinds(server.talk(first))[-1] is GoAwayFrame
    assert server.connection.closing


def test_more_data_than_the_window_allowed_ends_the_connection() -> None:
    server = greeted(Server(LeanOptions(stream_window_bytes=10_000, max_frame_bytes=2**20)))
    goaway = parse(server.talk(opening() + raw(0, 0, 1, bytes(10_001))))[-1]
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.error_code == ErrorCode.FLOW_CONTROL_ERROR
    server.assert_each_closed_once()


def test_streams_beyond_the_limit_are_refused_and_room_is_made_by_those_that_end() -> None:
    server = greeted(Server(LeanOptions(max_concurrent_streams=2)))
    (reset,) = parse(server.talk(opening(1) + opening(3) + opening(5)))
    assert (reset.stream_id, reset.error_code) == (5, ErrorCode.REFUSED_STREAM)
    server.talk(RstStreamFrame(1, error_code=8).serialize())
    assert server.talk(opening(7)) == b""
    assert len(server.exchanges) == 3


FEW_RESETS = LeanOptions(reset_burst=100)


def rapidly(server: Server, make: Callable[[int], bytes], count: int) -> None:
    for i in range(count):
        server.talk(make(1 + 2 * i))


def test_streams_opened_only_to_be_reset_are_an_attack() -> None:
    server = greeted(Server(FEW_RESETS))
    rapidly(server, lambda i: opening(i) + RstStreamFrame(i, error_code=8).serialize(), 101)
    assert server.connection.closing
    server.assert_each_closed_once()


def test_streams_that_make_us_reset_them_are_an_attack_too() -> None:
    server = greeted(Server(FEW_RESETS))
    rapidly(server, lambda i: opening(i) + raw(8, 0, i, bytes(4)), 101)
    assert server.connection.closing
    server.assert_each_closed_once()


def test_clients_that_leave_in_crowds_are_no_attack() -> None:
    server = greeted(Server(FEW_RESETS))
    rapidly(server, lambda i: opening(i) + data(i, framed(b"silence")), 500)
    rapidly(server, lambda i: RstStreamFrame(i, error_code=8).serialize(), 500)
    assert not server.connection.closing
    server.assert_each_closed_once()


def test_an_allowance_comes_back_with_time() -> None:
    server = greeted(Server())
    for _ in range(20):
        server.talk(PingFrame(0, bytes(8)).serialize() * 900)
        server.time.advance(9.0)
    assert not server.connection.closing


def test_unsent_output_never_grows_by_what_a_peer_sends_on_streams_that_are_over() -> None:
    server = greeted(Server())
    server.talk(opening() + data(1, framed(b"last")))
    out = sum(len(server.talk(data(1, bytes(10_000)))) for _ in range(2_000))
    assert out < 100  # a window update now and then
    assert not server.connection.closing


def test_streams_that_are_reset_while_they_wait_for_the_connections_window_leave_nothing_behind() -> None:
    server = greeted(Server())
    server.talk(SettingsFrame(0, settings={0x4: 2**20}).serialize())
    server.talk(opening() + data(1, framed(bytes(60_000))) + data(1, framed(bytes(9_000))))

    def reset_streams(first: int, count: int) -> None:
        for i in range(first, first + 2 * count, 2):
            server.talk(opening(i) + data(i, framed(bytes(1_000))))
            server.talk(RstStreamFrame(i, error_code=8).serialize())
            server.exchanges.clear()

    reset_streams(3, 2_500)  # the interpreter keeps two thousand small tuples for use again
    before = sys.getallocatedblocks()
    reset_streams(5_003, 1_000)
    assert sys.getallocatedblocks() - before < 500
    assert not server.connection.closing
    server.talk(WindowUpdateFrame(0, 2**20).serialize())
    assert server.connection.unsent_bytes == 0


def test_the_same_headers_are_decoded_once_and_others_do_not_pile_up() -> None:
    server = greeted(Server(LeanOptions(header_cache_entries=4)))
    for i in range(100):
        headers = block([*REQUEST, ("traceparent", str(i))])
        server.talk(HeadersFrame(1 + 2 * i, headers, flags=["END_HEADERS", "END_STREAM"]).serialize())
    assert len(server.exchanges) == 100
    server.assert_each_closed_once()


# --- draining ---------------------------------------------------------------------------------------------------------


def test_draining_takes_what_is_under_way_and_then_no_more() -> None:
    client = Client(Server())
    stream = client.open()
    server = client.server
    server.connection.drain()
    goaway, ping = parse(b"".join(server.connection.take_output()))
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.last_stream_id == 2**31 - 1
    server.talk(opening(3))  # crossed with it on the way
    assert len(server.exchanges) == 2
    pong = PingFrame(0, ping.opaque_data, flags=["ACK"]).serialize()
    (final,) = parse(server.talk(pong))
    assert (final.last_stream_id, final.error_code) == (3, ErrorCode.NO_ERROR)
    (refused,) = parse(server.talk(opening(5)))
    assert refused.error_code == ErrorCode.REFUSED_STREAM
    assert not server.connection.closing
    server.talk(data(stream, framed(b"a"), "END_STREAM") + data(3, b"", "END_STREAM"))
    assert server.connection.closing
    assert server.codes == ["OK", "OK"]


def test_a_peer_that_goes_away_is_let_go_after_its_last_stream() -> None:
    server = greeted(Server())
    server.talk(opening() + GoAwayFrame(0, last_stream_id=0).serialize())
    assert not server.connection.closing
    server.talk(data(1, b"", "END_STREAM"))
    assert server.connection.closing


def test_what_is_put_off_is_done_after_the_output_and_once() -> None:
    server = Server()
    client = Client(server)
    stream = client.open()
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise ZeroDivisionError

    client.send(stream, framed(b"hello"))
    queue = server.exchanges[0].stream
    queue.afterwards(fails)
    queue.afterwards(lambda: done.append("next"))
    assert server.wakes  # somebody has to write, and then do it
    server.connection.take_output()
    assert done == []
    server.connection.after_output()
    server.connection.after_output()
    assert done == ["fails", "next"]
    assert server.connection.open_streams == 1


def test_an_exchange_is_closed_when_its_last_frame_is_written() -> None:
    server = Server()
    client = Client(server)
    stream = client.open()
    client.h2.send_data(stream, framed(b"last"))
    server.connection.receive(client.h2.data_to_send())
    assert server.connection.take_output()
    assert server.connection.open_streams == 0
    assert server.exchanges[0].closings == []
    server.connection.lost()
    server.connection.after_output()
    server.assert_each_closed_once()
