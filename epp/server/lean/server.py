"""The lean transport: its addresses, its connections, and their end."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from epp.server.access_log.service import ACCESS_LOG_METHOD
from epp.server.health import HealthService, HealthState
from epp.server.lean.health import health_methods
from epp.server.lean.limits import LeanOptions
from epp.server.lean.protocol import CLOSING_TIMEOUT_S, LeanProtocol
from epp.server.lean.stream import Method
from epp.server.listen import Address, UnixAddress, listen
from epp.server.transport import METHOD, ExchangeFactory, StreamObserver

BACKLOG = 1024


class LeanServer:
    """A `Transport` of gRPC methods that are answered by exchanges."""

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        addresses: Sequence[Address],
        *,
        tls: ssl.SSLContext | None = None,
        options: LeanOptions | None = None,
        on_connections: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            methods: by path.
            tls: for the TCP addresses; Unix sockets are always plaintext.
            on_connections: told how many there are, without those that drain, when that has changed.
        """
        self._on_connections = on_connections
        self._methods = methods
        self._addresses = tuple(addresses)
        self._tls = tls
        self._options = options or LeanOptions()
        self._listening: list[asyncio.Server] = []
        self._sockets: list[str] = []  # paths of the Unix sockets that are ours to remove
        self._connections: set[LeanProtocol] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._port: int | None = None
        self._draining = False

    @property
    def port(self) -> int | None:
        return self._port

    async def start(self) -> None:
        """Bind and serve. Raises `CannotListen`."""
        for address in self._addresses:
            await self._listen(address, listen(address, BACKLOG))

    async def _listen(self, address: Address, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(address, UnixAddress):
            self._sockets.append(address.path)
            self._listening.append(await loop.create_unix_server(self._connect, sock=listener, backlog=BACKLOG))
        else:
            self._port = listener.getsockname()[1]
            timeout_s = self._options.handshake_timeout_s if self._tls is not None else None
            self._listening.append(
                await loop.create_server(
                    self._connect, sock=listener, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=timeout_s
                )
            )

    async def take(self, connection: socket.socket, *, secure: bool) -> None:
        """Serve a connection that somebody else has accepted, with TLS if `secure`. Raises OSError if it breaks."""
        tls = self._tls if secure else None
        timeout_s = None if tls is None else self._options.handshake_timeout_s
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._connect, connection, ssl=tls, ssl_handshake_timeout=timeout_s)

    def shed(self, count: int) -> None:
        """Let go of so many connections in good order, the busiest ones: their peers connect anew."""
        staying = [connection for connection in self._connections if not connection.draining]
        for connection in sorted(staying, key=lambda c: c.open_streams, reverse=True)[:count]:
            connection.drain()
        self.tell_connections()

    async def drain(self, grace_s: float) -> None:
        """Take no new connections and streams, let open streams finish for `grace_s` seconds, then cut them off."""
        self._draining = True
        self._stop_listening()
        if grace_s > 0:
            for connection in tuple(self._connections):
                connection.drain()
            await self._emptied(grace_s)
        for connection in tuple(self._connections):
            connection.cut()
        await self._emptied(CLOSING_TIMEOUT_S)

    async def stop(self) -> None:
        """Cut everything off now."""
        await self.drain(0)

    def _stop_listening(self) -> None:
        for server in self._listening:
            server.close()
        self._listening.clear()
        for path in self._sockets:
            with suppress(OSError):
                os.unlink(path)
        self._sockets.clear()

    async def _emptied(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)

    def _connect(self) -> LeanProtocol:
        return LeanProtocol(self._methods, self._options, self)

    # --- for the connections, which come once TLS is spoken -----------------------------------------------------------

    def add(self, connection: LeanProtocol) -> bool:
        if self._draining or len(self._connections) >= self._options.max_connections:
            return False
        self._connections.add(connection)
        self._empty.clear()
        self.tell_connections()
        return True

    def discard(self, connection: LeanProtocol) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        self.tell_connections()

    def tell_connections(self) -> None:
        """To `on_connections`."""
        if self._on_connections is not None:
            self._on_connections(sum(not connection.draining for connection in self._connections))


def lean_server(
    exchanges: ExchangeFactory,
    addresses: Sequence[Address],
    health: HealthState,
    observer: StreamObserver | None = None,
    *,
    access_logs: ExchangeFactory | None = None,
    tls: ssl.SSLContext | None = None,
    options: LeanOptions | None = None,
    on_connections: Callable[[int], None] | None = None,
) -> LeanServer:
    """The ext_proc service and, on the same port, health, and the access log service if there is one.

    `on_connections`: see `LeanServer`.
    """
    methods = {METHOD.encode(): Method(exchanges, observer), **health_methods(HealthService(health))}
    if access_logs is not None:
        methods[ACCESS_LOG_METHOD.encode()] = Method(access_logs)
    return LeanServer(methods, addresses, tls=tls, options=options, on_connections=on_connections)
