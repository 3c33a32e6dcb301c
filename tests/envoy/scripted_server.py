"""A model server that does exactly what a test says, and counts who came. For how servers really behave: `epp.sim`."""

import asyncio
import hashlib
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web

CHUNKS = [b'data: {"token": %d}\n\n' % i for i in range(20)]
TICK_S = 5.0
BINARY = bytes(range(256)) * 256
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_LENGTHS = _SSE + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx"
_CHUNKED = _SSE + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(CHUNKS[0]), CHUNKS[0])
# Bytes in the place of an answer: at once, and once it may go on.
RAW = {
    "no http": (b"\x16\x03\x01 this is not HTTP\r\n\r\n", b""),
    "garbage status": (b"HTTP/1.1 banana\r\n\r\n", b""),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"x-filler: %s\r\n" % (b"x" * 1000) * 200 + b"\r\n", b""),
    "two lengths": (_LENGTHS, b""),
    "invalid chunk at once": (_CHUNKED + b"banana\r\n", b""),
    "invalid chunk": (_CHUNKED, b"banana\r\n"),
    "too short": (_SSE + b"content-length: 1000\r\n\r\n" + CHUNKS[0], b"data: {}\n\n"),
}


class ScriptedServer:
    """Serves on a free port of loopback.

    Behaviours: `good` answers 200 with the size and digest of what it got; `busy` answers 503; `reset` breaks the
    connection before the first byte of the answer; `stream` sends the first of `CHUNKS`, waits for `go_on` and sends
    the rest; `breaks` sends the first, waits likewise and breaks the connection; `mute` waits before it answers;
    `ticks` is `stream` that repeats its first chunk every `TICK_S` while it waits; `dribbles` sends `CHUNKS` a few
    bytes at a time; `binary` sends `BINARY` and calls it an event stream; those of `RAW` send what stands there and
    close the connection. To a GET `ticks` is `good`.
    """

    def __init__(self, behaviour: str = "good") -> None:
        self.behaviour = behaviour
        self.headers: list[dict[str, str]] = []
        self.address = ""
        self.go_on = asyncio.Event()
        self.arrived = asyncio.Event()
        self.aborted = asyncio.Event()

    @property
    def requests(self) -> int:
        return len(self.headers)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.arrived.set()
        try:
            return await self._behave(request, await request.read())
        except asyncio.CancelledError:
            self.aborted.set()
            raise

    async def _behave(self, request: web.Request, body: bytes) -> web.StreamResponse:
        match "good" if (self.behaviour, request.method) == ("ticks", "GET") else self.behaviour:
            case "busy":
                return web.json_response({"error": "full"}, status=503)
            case "reset":
                _break(request)
            case "stream" | "ticks" | "breaks":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write(CHUNKS[0])
                if self.behaviour == "breaks":
                    await self.go_on.wait()
                    _break(request)
                    return response
                while self.behaviour == "ticks" and not self.go_on.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.go_on.wait(), TICK_S)
                    await response.write(CHUNKS[0])
                await self.go_on.wait()
                for chunk in CHUNKS[1:]:
                    await response.write(chunk)
                await response.write_eof()
                return response
            case "dribbles" | "binary":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                body, pause_s = (b"".join(CHUNKS), 0.005) if self.behaviour == "dribbles" else (BINARY, 0.0)
                step = 7 if self.behaviour == "dribbles" else 5000
                for start in range(0, len(body), step):
                    await response.write(body[start : start + step])
                    await asyncio.sleep(pause_s)
                await response.write_eof()
                return response
            case raw if raw in RAW:
                assert request.transport is not None
                first, rest = RAW[raw]
                request.transport.write(first)
                if rest:
                    await self.go_on.wait()
                    request.transport.write(rest)
                request.transport.close()
            case "mute":
                await self.go_on.wait()
        return web.json_response(
            {"server": self.address, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        )


def _break(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def closed_address() -> str:
    """An address on loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
