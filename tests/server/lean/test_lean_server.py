"""The lean server on real sockets: timers, back-pressure, the end, TLS, and clients of other makes."""

import asyncio
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, SettingsFrame
from lean_peers import PREFACE, Echo, block, framed

from epp.server.health import HealthState
from epp.server.lean.limits import LeanOptions
from epp.server.lean.server import LeanServer, lean_server
from epp.server.lean.tls import tls_context
from epp.server.listen import TcpAddress
from epp.server.tls import self_signed_now
from epp.server.transport import METHOD, Stream

ADDRESS = TcpAddress(0, "--grpc-port", "127.0.0.1")
HANDSHAKE = PREFACE + SettingsFrame(0).serialize() + SettingsFrame(0, flags=["ACK"]).serialize()
OPENING = HeadersFrame(1, block(), flags=["END_HEADERS"]).serialize()


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[tuple[LeanServer, list[Echo]]]:
    exchanges: list[Echo] = []

    def make(stream: Stream) -> Echo:
        exchanges.append(Echo(stream))
        return exchanges[-1]

    options = replace(LeanOptions(), **limits)  # type: ignore[arg-type]
    server = lean_server(make, [ADDRESS], HealthState(list), options=options)
    await server.start()
    yield server, exchanges
    await server.stop()


class RawClient:
    """A socket and frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> Any:
        head = await asyncio.wait_for(self.reader.readexactly(9), 30)
        frame, length = Frame.parse_frame_header(memoryview(head))
        frame.parse_body(memoryview(await self.reader.readexactly(length)))
        return frame

    async def next(self, kind: type[Frame]) -> Any:
        """The next frame of that kind; others are passed over."""
        while not isinstance(frame := await self.frame(), kind):
            pass
        return frame

    async def end(self) -> None:
        """Returns when the server has closed."""
        try:
            while await asyncio.wait_for(self.reader.read(65536), 30):
                pass
        except ConnectionError:
            pass


@asynccontextmanager
async def connected(server: LeanServer, first: bytes = HANDSHAKE) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(first)
    yield RawClient(reader, writer)
    writer.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 — what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", [b"", PREFACE[:10], PREFACE + SettingsFrame(0).serialize()])
async def test_who_does_not_greet_in_time_is_cut_off(first: bytes) -> None:
    async with serving(handshake_timeout_s=0.2) as (server, _), connected(server, first) as client:
        await client.end()


async def test_a_silent_peer_is_pinged_and_kept_if_it_answers_and_dropped_if_not() -> None:
    async with (
        serving(keepalive_s=0.1, keepalive_timeout_s=60) as (server, exchanges),
        connected(server, HANDSHAKE + OPENING) as client,
    ):
        for _ in range(3):
            ping = await client.next(PingFrame)
            client.writer.write(PingFrame(0, ping.opaque_data, flags=["ACK"]).serialize())
        assert exchanges[0].closings == []
    async with (
        serving(keepalive_s=0.1, keepalive_timeout_s=0.1) as (server, exchanges),
        connected(server, HANDSHAKE + OPENING) as client,
    ):
        await client.next(PingFrame)
        await client.end()
        await eventually(lambda: exchanges[0].closings == [True])


async def test_a_server_that_stood_still_asks_before_it_takes_anyone_for_dead() -> None:
    async with (
        serving(keepalive_s=0.1, keepalive_timeout_s=0.1) as (server, exchanges),
        connected(server, HANDSHAKE + OPENING) as client,
    ):
        await eventually(lambda: len(exchanges) == 1)
        time.sleep(0.3)  # noqa: ASYNC251 — all stand still, for longer than both together
        await client.next(PingFrame)


async def test_a_connection_without_streams_is_closed_in_good_order_and_one_with_a_stream_is_not() -> None:
    async with (
        serving(idle_timeout_s=0.3, keepalive_s=0.4) as (server, exchanges),
        connected(server) as idle,
        connected(server, HANDSHAKE + OPENING) as busy,
    ):
        assert (await idle.next(GoAwayFrame)).error_code == 0
        await idle.end()
        busy.writer.write(DataFrame(1, framed(b"a")).serialize())
        assert (await busy.next(DataFrame)).data == framed(b"a")
        assert exchanges[0].closings == []


async def test_connections_beyond_the_limit_are_closed_and_room_is_made() -> None:
    async with serving(max_connections=1) as (server, _):
        async with connected(server) as first:
            await first.next(SettingsFrame)
            async with connected(server) as second:
                await second.end()
        while True:  # until the server has seen that the first is gone
            async with connected(server) as third:
                try:
                    await third.next(SettingsFrame)
                    break
                except (asyncio.IncompleteReadError, ConnectionError):
                    await asyncio.sleep(0.01)


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    """All it can pile up is bounded: the socket's own buffers, and what is read at once."""
    async with serving(write_buffer_bytes=65_536, chatter_burst=10**9) as (server, _):
        client = socket.create_connection(("127.0.0.1", server.port or 0))
        client.setblocking(False)
        pings = PingFrame(0, bytes(8)).serialize() * 4_000
        loop, written = asyncio.get_running_loop(), 0
        client.send(HANDSHAKE)
        try:
            async with asyncio.timeout(1):
                while written < 200 * 2**20:
                    await loop.sock_sendall(client, pings)
                    written += len(pings)
        except TimeoutError:
            pass
        assert written < 100 * 2**20
        client.close()


async def test_an_error_is_told_before_the_connection_closes() -> None:
    async with serving() as (server, _), connected(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        goaway = await client.next(GoAwayFrame)
        assert goaway.error_code == 1
        await client.end()


async def test_draining_tells_goes_on_and_ends_with_the_last_stream() -> None:
    async with serving() as (server, exchanges), connected(server, HANDSHAKE + OPENING) as client:
        await eventually(lambda: len(exchanges) == 1)
        draining = asyncio.create_task(server.drain(60))
        assert (await client.next(GoAwayFrame)).last_stream_id == 2**31 - 1
        ping = await client.next(PingFrame)
        client.writer.write(PingFrame(0, ping.opaque_data, flags=["ACK"]).serialize())
        assert (await client.next(GoAwayFrame)).last_stream_id == 1
        client.writer.write(DataFrame(1, framed(b"last")).serialize())
        assert (await client.next(DataFrame)).data == framed(b"last")
        await client.end()
        await asyncio.wait_for(draining, 30)
        assert exchanges[0].closings == [False]


async def test_stopping_cuts_everything_at_once_also_while_draining() -> None:
    async with serving() as (server, exchanges), connected(server, HANDSHAKE + OPENING) as client:
        await eventually(lambda: len(exchanges) == 1)
        draining = asyncio.create_task(server.drain(60))
        await client.next(GoAwayFrame)
        await asyncio.wait_for(server.stop(), 30)
        await asyncio.wait_for(draining, 30)
        assert exchanges[0].closings == [True]
        await client.end()


async def test_http2_is_agreed_on_by_alpn_and_old_tls_is_not_spoken() -> None:
    pair = self_signed_now()
    server = lean_server(Echo, [ADDRESS], HealthState(list), tls=tls_context(pair))
    await server.start()

    async def protocol(version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cadata=pair.certificate.decode())
        context.maximum_version = context.minimum_version = version
        context.set_alpn_protocols(["http/1.1", "h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()
        return str(chosen)

    assert await protocol(ssl.TLSVersion.TLSv1_3) == "h2"
    assert await protocol(ssl.TLSVersion.TLSv1_2) == "h2"
    with pytest.raises((ssl.SSLError, ConnectionError)), pytest.warns(DeprecationWarning, match="TLSv1_1"):
        await protocol(ssl.TLSVersion.TLSv1_1)
    await server.stop()


async def test_a_handshake_that_never_ends_does_not_hold_up_the_end() -> None:
    server = lean_server(Echo, [ADDRESS], HealthState(list), tls=tls_context(self_signed_now()))
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port or 0)):
        await asyncio.sleep(0.05)
        await asyncio.wait_for(server.drain(60), 30)


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    return output.decode(errors="replace")


@pytest.fixture
def tool() -> Callable[[str], str]:
    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"needs {name}, an HTTP/2 client of another make (Debian: nghttp2-client)")
        return path

    return find


async def test_h2load_completes_every_stream(tool: Callable[[str], str], tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(framed(b"a", bytes(100_000), b"b"))
    async with serving() as (server, exchanges):
        url = f"http://127.0.0.1:{server.port}{METHOD}"
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output = await run(tool("h2load"), "-n", "400", "-c", "4", "-m", "20", "-d", str(body), *headers, url)
        assert "400 succeeded, 0 failed, 0 errored" in output
        assert [len(e.received) for e in exchanges] == [3] * 400
        assert [e.closings for e in exchanges] == [[False]] * 400


async def test_nghttp_reads_headers_and_trailers(tool: Callable[[str], str], tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(framed(b"hello"))
    async with serving() as (server, _):
        url = f"http://127.0.0.1:{server.port}{METHOD}"
        output = await run(tool("nghttp"), "-nv", "-d", str(body), "-H", "content-type: application/grpc", url)
        assert ":status: 200" in output
        assert "grpc-status: 0" in output
