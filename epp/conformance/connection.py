"""A gRPC client on h2: streams of whole messages as bytes, with everything a proxy may do to them.

Not grpcio, which is what pickers are often made with: another reading of HTTP/2 and gRPC finds more. And not grpclib:
when a server ends a stream early and resets it, as it may, grpclib forgets the messages that came before.
"""

import asyncio
import gzip
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from epp.problem import Problem

OK = 0
CANCELLED = 1
UNIMPLEMENTED = 12
UNAVAILABLE = 14
_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)

# So large that the picker is never held up by us; what it sends is kept in memory.
_WINDOW_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Status:
    """How a gRPC stream ended."""

    code: int
    message: str = ""

    @property
    def name(self) -> str:
        return _NAMES[self.code] if 0 <= self.code < len(_NAMES) else str(self.code)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a gRPC server listens: `HOST:PORT` (IPv6 bracketed) or `unix:PATH`. TLS certificates are not verified, as
    pickers' are self-signed by default; a Unix socket is always plaintext."""

    host: str
    port: int
    path: str | None
    tls: bool

    @classmethod
    def parse(cls, text: str, *, tls: bool) -> Self:
        """Raises `Problem`."""
        if text.startswith("unix:"):
            return cls("localhost", 0, text.removeprefix("unix:"), False)
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise Problem(f"{text}: write a target as HOST:PORT, [IPV6]:PORT or unix:PATH")
        return cls(host.removeprefix("[").removesuffix("]"), int(port), None, tls)

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """One HTTP/2 connection. `async with Connection(target) as connection`."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._streams: dict[int, GrpcStream] = {}
        self._transport: asyncio.Transport | None = None
        self._window = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        context = _any_certificate() if self._target.tls else None
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._target.path is not None:
                    await loop.create_unix_connection(lambda: self, self._target.path)
                else:
                    await loop.create_connection(lambda: self, self._target.host, self._target.port, ssl=context)
        except (OSError, TimeoutError) as error:
            raise Problem(f"{self._target}: cannot connect: {error or 'no answer'}{self._hint()}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._transport is not None:
            self._transport.close()

    def _hint(self) -> str:
        return "; if the picker serves without TLS, say --plaintext" if self._target.tls else ""

    def stream(self, method: str, *, encoding: str | None = None) -> "GrpcStream":
        """Open a stream to a method, `/package.Service/Method`. `encoding`: of the messages sent compressed."""
        stream_id = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "https" if self._target.tls else "http"),
            (":path", method),
            (":authority", str(self._target) if self._target.path is None else "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if encoding is not None:
            headers.append(("grpc-encoding", encoding))
        stream = self._streams[stream_id] = GrpcStream(self, stream_id)
        if self._transport is None or self._transport.is_closing():
            stream.ended(Status(UNAVAILABLE, "the connection is gone"))
        else:
            self._h2.send_headers(stream_id, headers)
            self._flush()
        return stream

    async def call(self, method: str, request: bytes) -> tuple[list[bytes], Status]:
        """A call with one request message."""
        stream = self.stream(method)
        await stream.send(request)
        await stream.half_close()
        async with asyncio.timeout(self._timeout_s):
            messages = [message async for message in stream]
        assert stream.status is not None
        return messages, stream.status

    async def room(self) -> None:
        """Wait until another stream may be opened. Raises TimeoutError if the peer allows none in time."""
        async with asyncio.timeout(self._timeout_s):
            while self._h2.open_outbound_streams >= self._h2.remote_settings.max_concurrent_streams:
                self._window.clear()
                await self._window.wait()

    async def write(self, stream_id: int, data: bytes) -> None:
        view = memoryview(data)
        while view and self._is_open(stream_id):
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size, len(view))
            if room <= 0:
                self._window.clear()
                await self._window.wait()
                continue
            self._h2.send_data(stream_id, bytes(view[:room]))
            view = view[room:]
            self._flush()
            await asyncio.sleep(0)  # let what comes in be read

    def end(self, stream_id: int) -> None:
        if self._is_open(stream_id):
            self._h2.end_stream(stream_id)
            self._flush()

    def reset(self, stream_id: int) -> None:
        if self._is_open(stream_id):
            self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._flush()

    def _is_open(self, stream_id: int) -> bool:
        if self._transport is None or self._transport.is_closing():
            return False
        return self._streams[stream_id].status is None

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(self._h2.data_to_send())

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.increment_flow_control_window(_WINDOW_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError as error:
            self._all_ended(f"the server broke HTTP/2: {error}")
            return
        for event in events:
            match event:
                case DataReceived():
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    self._streams[event.stream_id].received(event.data)
                case ResponseReceived() | TrailersReceived():
                    self._streams[event.stream_id].headers(_texts(event.headers))
                case StreamEnded():
                    self._streams[event.stream_id].ended(Status(2, "the stream ended without a gRPC status"))
                case StreamReset():
                    self._streams[event.stream_id].ended(Status(13, f"reset with HTTP/2 error {event.error_code}"))
                case ConnectionTerminated(error_code=ErrorCodes.NO_ERROR):
                    pass  # a graceful goodbye: open streams go on
                case ConnectionTerminated():
                    self._all_ended(f"the server closed the connection with HTTP/2 error {event.error_code}")
        self._flush()
        self._window.set()  # whoever waits to send looks again: there may be room, or nobody to send to

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_ended("the connection is gone")

    def _all_ended(self, why: str) -> None:
        for stream in self._streams.values():
            stream.ended(Status(UNAVAILABLE, why))
        self._window.set()


class GrpcStream:
    """One call. Iterating gives each message until the stream has ended; then `status` says how."""

    def __init__(self, connection: Connection, stream_id: int) -> None:
        self._connection = connection
        self._id = stream_id
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._trailer: Status | None = None
        self.status: Status | None = None

    async def send(self, message: bytes, *, compress: bool = False, bytewise: bool = False) -> None:
        """Nothing is sent once the server has ended the stream. `bytewise`: in DATA frames of one byte each."""
        if compress:
            message = gzip.compress(message, 1)
        framed = bytes([compress]) + len(message).to_bytes(4, "big") + message
        size = 1 if bytewise else len(framed)
        for at in range(0, len(framed), size):
            await self.send_raw(framed[at : at + size])

    async def send_raw(self, data: bytes) -> None:
        """Bytes as they are, a message's frame or not."""
        await self._connection.write(self._id, data)

    async def half_close(self) -> None:
        self._connection.end(self._id)

    def reset(self) -> None:
        """RST_STREAM, as Envoy does when its client has gone."""
        self._connection.reset(self._id)
        self.ended(Status(CANCELLED, "reset by ourselves"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._messages:
            if self.status is not None:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()

    # --- for the connection ----------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 5:
            end = 5 + int.from_bytes(self._buffer[1:5], "big")
            if len(self._buffer) < end:
                break
            self._messages.append(bytes(self._buffer[5:end]))
            if self._buffer[0]:
                self.ended(Status(13, "a compressed message came, and none was asked for"))
            del self._buffer[:end]
        self._arrived.set()

    def headers(self, pairs: Mapping[str, str]) -> None:
        if "grpc-status" in pairs:
            self._trailer = Status(int(pairs["grpc-status"]), unquote(pairs.get("grpc-message", "")))
        elif pairs.get(":status", "200") != "200":
            self._trailer = Status(2, f"HTTP status {pairs[':status']}")

    def ended(self, status: Status) -> None:
        """The stream is over: with the status of its trailers if there were any."""
        if self.status is None:
            self.status = self._trailer or status
            self._arrived.set()


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _texts(headers: Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers}  # `header_encoding` made them text already
