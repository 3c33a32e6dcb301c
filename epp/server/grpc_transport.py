"""ext_proc over grpc.aio, as raw bytes.

One coroutine per stream reads, asks the exchange, writes; there is no task per message. What an exchange sends of its
own accord goes through the same queue and lock as its replies, because gRPC allows one write at a time per stream and
the order must hold. A stream that we end while nothing comes in is woken by cancelling our own coroutine.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from epp.server.access_log.service import ACCESS_LOG_METHOD
from epp.server.health import HealthService, HealthState
from epp.server.listen import Address, TcpAddress
from epp.server.transport import METHOD, Exchange, ExchangeFactory, StreamObserver
from epp.wire.codec import ProtocolError

logger = logging.getLogger(__name__)

# After an end of input, how long to wait for the reset that may stand behind it: gRPC reports a reset first as an end
# of input and only then as a cancellation.
RESET_WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """
    Attributes:
        max_receive_bytes: largest message taken. One message may hold a whole buffered body, so gRPC's own 4 MiB is
            too little.
        max_concurrent_streams: per connection. Envoy opens more connections when it is reached.
        keepalive_s: pings on an idle connection, so that a dead Envoy is noticed.
    """

    max_receive_bytes: int = 32 * 2**20
    max_concurrent_streams: int = 65_536
    keepalive_s: float = 60.0

    def channel_arguments(self) -> list[tuple[str, int]]:
        return [
            ("grpc.so_reuseport", 0),  # a second process on the same port is an error, not a load balancer
            ("grpc.max_receive_message_length", self.max_receive_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.max_concurrent_streams),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1e3)),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),  # a proxy's own keepalive, however frequent, is no offence
        ]


class GrpcServer:
    """A grpc.aio server on some addresses. `Transport` of ext_proc, or of health alone."""

    def __init__(
        self,
        handlers: Sequence["grpc.GenericRpcHandler[Any, Any]"],
        addresses: Sequence[Address],
        *,
        credentials: grpc.ServerCredentials | None = None,
        options: GrpcOptions | None = None,
    ) -> None:
        """`credentials`: TLS on the TCP addresses; Unix sockets are always plaintext."""
        self._handlers = tuple(handlers)
        self._addresses = tuple(addresses)
        self._credentials = credentials
        self._options = options or GrpcOptions()
        self._server: aio.Server | None = None
        self._port: int | None = None

    @property
    def port(self) -> int | None:
        return self._port

    async def start(self) -> None:
        server = aio.server(handlers=self._handlers, options=self._options.channel_arguments())
        for address in self._addresses:
            address.check_free()
            try:
                if isinstance(address, TcpAddress):
                    self._port = self._bind(server, address)
                else:
                    server.add_insecure_port(f"unix:{address.path}")
            except RuntimeError as error:  # somebody took it since it was checked
                raise address.cannot_listen(OSError(errno.EADDRINUSE, str(error))) from error
        await server.start()
        self._server = server

    def _bind(self, server: aio.Server, address: TcpAddress) -> int:
        host = address.host or "::"
        target = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
        if self._credentials is None:
            return server.add_insecure_port(target)
        return server.add_secure_port(target, self._credentials)

    async def drain(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    async def stop(self) -> None:
        await self.drain(0)


def ext_proc_server(
    exchanges: ExchangeFactory,
    addresses: Sequence[Address],
    health: HealthState,
    observer: StreamObserver | None = None,
    *,
    access_logs: ExchangeFactory | None = None,
    credentials: grpc.ServerCredentials | None = None,
    options: GrpcOptions | None = None,
) -> GrpcServer:
    """The ext_proc service and, on the same port, health, and the access log service if there is one."""
    handlers = [_StreamHandler(METHOD, exchanges, observer), HealthService(health).handler()]
    if access_logs is not None:
        handlers.append(_StreamHandler(ACCESS_LOG_METHOD, access_logs, None))
    return GrpcServer(handlers, addresses, credentials=credentials, options=options)


def health_server(health: HealthState, addresses: Sequence[Address]) -> GrpcServer:
    """Health alone, plaintext, for probes."""
    return GrpcServer([HealthService(health).handler()], addresses)


class _StreamHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """One method whose calls are answered by exchanges."""

    def __init__(self, path: str, exchanges: ExchangeFactory, observer: StreamObserver | None) -> None:
        self._path = path
        self._exchanges = exchanges
        self._observer = observer
        self._method = grpc.stream_stream_rpc_method_handler(self._process)  # no serializers: bytes in, bytes out

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._method if handler_call_details.method == self._path else None

    async def _process(self, _: object, context: aio.ServicerContext[bytes, bytes]) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        stream = _Stream(context)
        exchange = self._exchanges(stream)
        if self._observer is not None:
            self._observer.stream_opened()
        code, cancelled = "Canceled", True
        try:
            await self._converse(exchange, stream, context)
            code, cancelled = "OK", False
        except asyncio.CancelledError:
            if not stream.finishing:
                raise
            stream.task.uncancel()
            code, cancelled = "OK", False
        except ProtocolError:
            code, cancelled = "InvalidArgument", False
        except aio.BaseError:  # a write after the peer was gone
            code, cancelled = "Canceled", True
        except Exception:
            logger.exception("a stream ended by an unexpected error")
            code, cancelled = "Internal", False
        finally:
            stream.close()
            stream.do_what_was_put_off()
            if self._observer is not None:
                self._observer.stream_closed(code, loop.time() - started_s)
            exchange.closed(cancelled=cancelled)
        if code == "InvalidArgument":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not an ext_proc message")
        elif code == "Internal":
            await context.abort(grpc.StatusCode.INTERNAL, "unexpected error")

    async def _converse(
        self, exchange: Exchange, stream: "_Stream", context: aio.ServicerContext[bytes, bytes]
    ) -> None:
        while not (exchange.finished or stream.finishing):
            data = await stream.read()
            if data is aio.EOF:  # type: ignore[attr-defined]
                await stream.flush()
                await asyncio.sleep(RESET_WAIT_S)
                return
            replies = exchange.receive(data)
            if replies:
                await stream.write(replies)
            stream.do_what_was_put_off()
        await stream.flush()


class _Stream:
    """`Stream` over one gRPC context."""

    def __init__(self, context: aio.ServicerContext[bytes, bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.finishing = False
        self._context = context
        self._queue: deque[bytes] = deque()
        self._put_off: deque[Callable[[], None]] = deque()
        self._lock = asyncio.Lock()
        self._reading = False
        self._closed = False
        self._background: asyncio.Task[None] | None = None

    async def read(self) -> Any:
        self._reading = True
        try:
            return await self._context.read()
        finally:
            self._reading = False

    async def write(self, replies: Sequence[bytes]) -> None:
        self._queue.extend(replies)
        await self.flush()

    async def flush(self) -> None:
        async with self._lock:
            while self._queue:
                await self._context.write(self._queue.popleft())

    def send(self, replies: Sequence[bytes]) -> None:
        self._queue.extend(replies)
        self._work_in_background()

    def afterwards(self, action: Callable[[], None]) -> None:
        self._put_off.append(action)

    def do_what_was_put_off(self) -> None:
        while self._put_off:
            self._put_off.popleft()()

    def finish(self) -> None:
        self.finishing = True
        self._work_in_background()

    def close(self) -> None:
        """Nothing is sent any more."""
        self._closed = True
        if self._background is not None:
            self._background.cancel()

    def _work_in_background(self) -> None:
        if not self._closed and (self._background is None or self._background.done()):
            self._background = asyncio.get_running_loop().create_task(self._flush_and_finish())

    async def _flush_and_finish(self) -> None:
        try:
            await self.flush()
        except aio.BaseError:  # the peer is gone; the reading side learns of it by itself
            return
        if self.finishing and self._reading:
            self.task.cancel()
