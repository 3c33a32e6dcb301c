"""Our connection and somebody else's client, in memory, with a clock that stands still until told."""

import heapq
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
from hpack import Encoder
from hyperframe.frame import Frame, SettingsFrame

from epp.server.lean.calls import Clockwork
from epp.server.lean.connection import Connection
from epp.server.lean.limits import LeanOptions
from epp.server.lean.stream import Method
from epp.server.transport import METHOD, Stream
from epp.wire.codec import ProtocolError

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "epp"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Echo:
    """An exchange that answers each message with itself, but for a few words; and remembers how it ended."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.finished = False
        self.received: list[bytes] = []
        self.closings: list[bool] = []
        self.lost = False

    def receive(self, data: bytes) -> list[bytes]:
        assert not self.closings
        self.received.append(data)
        match data:
            case b"garbage":
                raise ProtocolError("undecodable message")
            case b"bug":
                raise ZeroDivisionError("secret prompt")
            case b"silence":
                return []
            case b"last":
                self.finished = True
        return [data]

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        self.closings.append(cancelled)
        self.lost = lost


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Callable[[], None], list[bool]]] = []
        self._count = itertools.count()

    def clock(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, action: Callable[[], None]) -> "FakeTimer":
        cancelled: list[bool] = []
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._count), action, cancelled))
        return FakeTimer(cancelled)

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        while self._timers and self._timers[0][0] <= self.now_s:
            _, _, action, cancelled = heapq.heappop(self._timers)
            if not cancelled:
                action()


@dataclass
class FakeTimer:
    cancelled: list[bool]

    def cancel(self) -> None:
        self.cancelled.append(True)


@dataclass
class Server:
    """Our side. `wakes` counts how often it asked for a flush of its own accord."""

    options: LeanOptions = field(default_factory=LeanOptions)
    time: FakeTime = field(default_factory=FakeTime)
    exchanges: list[Echo] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    opened: int = 0
    wakes: int = 0

    def __post_init__(self) -> None:
        methods = {METHOD.encode(): Method(self._exchange, self)}
        time = Clockwork(self.time.clock, self.time.call_later)
        self.connection = Connection(methods, self.options, time, self._wake)

    def _exchange(self, stream: Stream) -> Echo:
        self.exchanges.append(Echo(stream))
        return self.exchanges[-1]

    def _wake(self) -> None:
        self.wakes += 1

    def stream_opened(self) -> None:
        self.opened += 1

    def stream_closed(self, code: str, duration_s: float) -> None:
        self.codes.append(code)

    def talk(self, data: bytes) -> bytes:
        """What it answers to these bytes."""
        self.connection.receive(data)
        output = b"".join(self.connection.take_output())
        self.connection.after_output()
        return output

    def assert_each_closed_once(self) -> None:
        assert [len(exchange.closings) for exchange in self.exchanges] == [1] * len(self.exchanges)
        assert self.opened == len(self.codes) == len(self.exchanges)


class Client:
    """The `h2` package as a gRPC client of a `Server`. Events are kept by stream (0: the connection)."""

    def __init__(self, server: Server, *, window: int | None = None) -> None:
        self.server = server
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.events: list[h2.events.Event] = []
        self.data: dict[int, bytearray] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.resets: dict[int, int] = {}
        self.goaways: list[h2.events.ConnectionTerminated] = []
        self.auto_window = True
        self.pump()

    def pump(self) -> None:
        """Let the two talk until neither has more to say."""
        while True:
            data = self.h2.data_to_send()
            answer = self.server.talk(data)
            if not answer and not data:
                return
            for event in self.h2.receive_data(answer):
                self._on(event)

    def _on(self, event: h2.events.Event) -> None:
        self.events.append(event)
        match event:
            case h2.events.DataReceived():
                self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
                if self.auto_window and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived() | h2.events.ResponseReceived():
                headers = {str(name): str(value) for name, value in event.headers}
                if "grpc-status" in headers:
                    self.trailers[event.stream_id] = headers
            case h2.events.StreamReset():
                self.resets[event.stream_id] = event.error_code
            case h2.events.ConnectionTerminated():
                self.goaways.append(event)

    def open(self, headers: Sequence[tuple[str, str]] = REQUEST, *, end: bool = False) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, headers, end_stream=end)
        self.pump()
        return stream_id

    def send(self, stream_id: int, data: bytes, *, end: bool = False, padding: int | None = None) -> None:
        """Bytes of messages, cut into frames and held back as the server's windows want it."""
        while True:
            room = self.h2.local_flow_control_window(stream_id) - (padding + 1 if padding else 0)
            size = min(len(data), room, 16_384 - 300)
            last = size == len(data)
            self.h2.send_data(stream_id, data[:size], end_stream=end and last, pad_length=padding)
            self.pump()
            data = data[size:]
            if last:
                return
            assert size, "the server gives no window"

    def messages(self, stream_id: int) -> list[bytes]:
        """The whole messages that came on a stream."""
        data, messages = bytes(self.data.get(stream_id, b"")), []
        while data:
            flag, length = struct.unpack_from(">BI", data)
            assert flag == 0
            assert len(data) >= 5 + length
            messages.append(data[5 : 5 + length])
            data = data[5 + length :]
        return messages

    def status(self, stream_id: int) -> str | None:
        return self.trailers.get(stream_id, {}).get("grpc-status")


def block(headers: Sequence[tuple[str, str]] = REQUEST) -> bytes:
    """As a client encodes them that knows our header table has no room."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(headers)


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)


def parse(data: bytes) -> list[Any]:
    """Frames of a server's output, by an independent reader."""
    parsed = []
    view = memoryview(data)
    while view:
        frame, length = Frame.parse_frame_header(view[:9])
        frame.parse_body(view[9 : 9 + length])
        parsed.append(frame)
        view = view[9 + length :]
    return parsed


def greeted(server: Server) -> Server:
    """After the handshake."""
    server.talk(PREFACE + SettingsFrame(0).serialize() + SettingsFrame(0, flags=["ACK"]).serialize())
    return server
