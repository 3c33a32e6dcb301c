"""A model server that does exactly what a test says, and counts who came. For how servers really behave: `epp.sim`."""

import asyncio
import gzip
import hashlib
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web

CHUNKS = [b'data: {"token": %d}\n\n' % i for i in range(20)]
TICK_S = 5.0
STEADY_S = 0.02
BINARY = bytes(range(256)) * 256
_SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_LENGTHS = _SSE + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx"
_CHUNKED = _SSE + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(CHUNKS[0]), CHUNKS[0])
_TOKEN = b'data: {"choices":[{"index":0,"text":"x"}],"usage":null}'
TOKEN = _TOKEN + b"\n\n"
_COUNTS = b'{"prompt_tokens":9,"completion_tokens":41,"prompt_tokens_details":{"cached_tokens":4}}'
_USAGE = b'data: {"choices":[],"usage":%s}' % _COUNTS
_DONE = b"data: [DONE]"
_EVENTS = [_TOKEN] * 41 + [_USAGE, _DONE]


def _lines(events: Sequence[bytes], end: bytes = b"\n") -> list[bytes]:
    return [event + end + end for event in events]


def _cut(chunks: Sequence[bytes], size: int) -> list[bytes]:
    whole = b"".join(chunks)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


_HUGE = b'data: {"choices":[{"index":0,"text":"%s"}]}' % (b"y" * 2_000_000)
STREAMS: dict[str, tuple[dict[str, str], list[bytes]]] = {
    "events": ({}, _lines(_EVENTS)),
    "events of CRLF": ({}, _lines(_EVENTS, b"\r\n")),
    "events in pieces": ({}, _cut(_lines(_EVENTS), 33)),
    "a huge event": ({}, _lines([_TOKEN, _HUGE, *_EVENTS[1:]])),
    "no JSON": ({}, _lines([_TOKEN, b"data: not {JSON", b": comment", b"data", *_EVENTS[1:]])),
    "no usage": ({}, _lines([*[_TOKEN] * 41, _DONE])),
    "compressed": ({"content-encoding": "gzip"}, _cut([gzip.compress(b"".join(_lines(_EVENTS)))], 50)),
    "100 tokens": ({}, _lines([*[_TOKEN] * 100, _USAGE, _DONE])),
    "10000 tokens": ({}, _lines([*[_TOKEN] * 10_000, _USAGE, _DONE])),
}
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
    `ticks` is `stream` that repeats its first chunk every `TICK_S` while it waits, and `steady` one that sends `TOKEN`
    every `STEADY_S` and breaks off in the end if `breaks_off` is set; `dribbles` sends `CHUNKS` a few bytes at a time;
    `binary` sends `BINARY` and calls it an event stream; those of `RAW` send what stands there and close the
    connection; those of `STREAMS` send those chunks, one at a time, with the headers that go with them. To a GET
    `ticks` is `good`.
    """

    def __init__(self, behaviour: str = "good") -> None:
        self.behaviour = behaviour
        self.breaks_off = False  # what streams is broken off when it may go on
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
            case "stream" | "ticks" | "steady" | "breaks":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write(CHUNKS[0])
                if self.behaviour == "breaks":
                    await self.go_on.wait()
                    _break(request)
                    return response
                while self.behaviour in ("ticks", "steady") and not self.go_on.is_set():
                    chunk, pause_s = (TOKEN, STEADY_S) if self.behaviour == "steady" else (CHUNKS[0], TICK_S)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.go_on.wait(), pause_s)
                    await response.write(chunk)
                await self.go_on.wait()
                if self.breaks_off:
                    _break(request)
                    return response
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
            case streams if streams in STREAMS:
                encoding, chunks = STREAMS[streams]
                headers = {"content-type": "text/event-stream", **encoding}
                response = web.StreamResponse(headers=headers)
                await response.prepare(request)
                for chunk in chunks:
                    await response.write(chunk)
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
