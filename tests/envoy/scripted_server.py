"""A model server that does exactly what a test says, and counts who came. For how servers really behave: `epp.sim`."""

import asyncio
import hashlib
import socket
from types import TracebackType
from typing import Self

from aiohttp import web

CHUNKS = [b'data: {"token": %d}\n\n' % i for i in range(20)]


class ScriptedServer:
    """Serves on a free port of loopback.

    Behaviours: `good` answers 200 with the size and digest of what it got; `busy` answers 503; `reset` breaks the
    connection before the first byte of the answer; `stream` sends the first of `CHUNKS`, waits for `go_on` and sends
    the rest; `breaks` sends the first, waits likewise and breaks the connection; `mute` waits before it answers.
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
        match self.behaviour:
            case "busy":
                return web.json_response({"error": "full"}, status=503)
            case "reset":
                _break(request)
            case "stream" | "breaks":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write(CHUNKS[0])
                if self.behaviour == "breaks":
                    await self.go_on.wait()
                    _break(request)
                    return response
                await self.go_on.wait()
                for chunk in CHUNKS[1:]:
                    await response.write(chunk)
                await response.write_eof()
                return response
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
