"""A connection's I/O on asyncio: what is read goes in, what comes out is written at once, and timers watch over it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

from epp.server.lean.calls import Clockwork
from epp.server.lean.connection import Connection
from epp.server.lean.limits import LeanOptions
from epp.server.lean.stream import Method

# How long a peer that goes on reading has to take our last words.
CLOSING_TIMEOUT_S: Final = 5.0

# After announcing the end, how long to wait for the peer's word that it has heard.
DRAIN_ECHO_TIMEOUT_S: Final = 1.0


class Connections(Protocol):
    """Who keeps count."""

    def add(self, connection: "LeanProtocol") -> bool:
        """Whether it is taken."""

    def discard(self, connection: "LeanProtocol") -> None: ...


class LeanProtocol(asyncio.Protocol):
    """
    Attributes:
        draining: its end is announced.

    Back-pressure: a peer that does not read what we write is not read from either, so what it can pile up here is one
    read's worth; after the keepalive's time it is taken for dead. Flow control inside the connection is `sending`'s.
    """

    def __init__(self, methods: Mapping[bytes, Method], options: LeanOptions, open_connections: "Connections") -> None:
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._open_connections = open_connections
        self._connection = Connection(methods, options, Clockwork(self._loop.time, self._loop.call_later), self._wake)
        self._transport: asyncio.Transport | None = None
        self._woken = False
        self._made_s = self._heard_s = self._busy_s = self._loop.time()
        self._pinged = False
        self.draining = False
        self._streams_seen = 0
        self._timers: list[asyncio.TimerHandle] = []

    # --- for asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._options.write_buffer_bytes)
        if self._open_connections.add(self):
            self._watch()
            self._flush()
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        self._connection.receive(data)
        self._flush()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for timer in self._timers:
            timer.cancel()
        self._connection.lost()
        self._connection.after_output()
        self._open_connections.discard(self)

    # --- for the server -----------------------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        return self._connection.open_streams

    def drain(self) -> None:
        """Announce the end; close after the last stream."""
        self.draining = True
        self._connection.drain()
        self._flush()
        self._later(DRAIN_ECHO_TIMEOUT_S, self._stop_taking_streams)

    def cut(self) -> None:
        """End all streams and close."""
        self._connection.cut()
        self._flush()

    def abort(self) -> None:
        """Close without a word."""
        if self._transport is not None:
            self._transport.abort()

    # --- output -------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._woken = False
        transport, connection = self._transport, self._connection
        if transport is not None and not transport.is_closing():
            out = connection.take_output()
            if out:
                transport.write(b"".join(out))
            if connection.closing:
                transport.close()
                self._later(CLOSING_TIMEOUT_S, self.abort)
        connection.after_output()

    # --- time ---------------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(delay_s, action))

    def _stop_taking_streams(self) -> None:
        self._connection.stop_taking_streams()
        self._flush()

    def _watch(self) -> None:
        """Look after the connection now and then: strangers, the dead, and the idle."""
        options, connection, now_s = self._options, self._connection, self._loop.time()
        silent_s = now_s - self._heard_s
        if connection.open_streams or connection.last_stream_id != self._streams_seen:
            self._streams_seen, self._busy_s = connection.last_stream_id, now_s
        stranger = not connection.established and now_s - self._made_s >= options.handshake_timeout_s
        # Who stood still itself has heard nobody, and asks first.
        if stranger or (self._pinged and silent_s >= options.keepalive_s + options.keepalive_timeout_s):
            self.abort()
        elif silent_s < options.keepalive_s:
            self._pinged = False
        elif not self._pinged:
            self._pinged = True
            connection.ping()
            self._flush()
        if now_s - self._busy_s >= options.idle_timeout_s:
            self.drain()
        shortest_s = min(options.handshake_timeout_s, options.keepalive_s, options.keepalive_timeout_s)
        self._later(shortest_s / 4, self._watch)
