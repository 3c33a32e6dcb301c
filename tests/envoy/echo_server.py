"""A model server that says who it is: to HTTP/1, or to HTTP/2 without TLS (h2c) where it is told to speak that."""

import asyncio
import json
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from aiohttp import web
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

READ_BYTES = 65536


class EchoServer:
    """Answers every request with 200 and `{"server": "ip:port", "protocol": …, "path": …, "authority": …}`.

    Args:
        host: an address of loopback.
        port: 0 lets the system choose.
        protocol: `http` or `h2c`; the other one is not understood.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, protocol: str = "http") -> None:
        self._host = host
        self._port = port
        self._protocol = protocol
        self._runner: web.ServerRunner | None = None
        self._h2_server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        listener = socket.create_server((self._host, self._port))
        self._port = listener.getsockname()[1]
        if self._protocol == "h2c":
            self._h2_server = await asyncio.start_server(self._accept, sock=listener)
        else:
            self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
            await self._runner.setup()
            await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._h2_server is not None:
            self._h2_server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _echo(self, path: str, authority: str) -> bytes:
        told = {"server": self.address, "protocol": self._protocol, "path": path, "authority": authority}
        return json.dumps(told).encode()

    # --- HTTP/1 -------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=self._echo(request.path, request.host), content_type="application/json")

    # --- HTTP/2 -------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(ConnectionError, ProtocolError, asyncio.CancelledError):
                await self._speak_h2(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _speak_h2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        connection.increment_flow_control_window(2**24)  # test bodies are small: one window lasts
        requests: dict[int, dict[str, str]] = {}
        while True:
            writer.write(connection.data_to_send())
            data = await reader.read(READ_BYTES)
            if not data:
                return
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    requests[event.stream_id] = dict(event.headers)
                elif isinstance(event, StreamEnded):
                    headers = requests.pop(event.stream_id)
                    answer = [(":status", "200"), ("content-type", "application/json")]
                    connection.send_headers(event.stream_id, answer)
                    body = self._echo(headers[":path"], headers[":authority"])
                    connection.send_data(event.stream_id, body, end_stream=True)
