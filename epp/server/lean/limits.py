"""Every bound of the lean transport in one place, and the one kind of counter that keeps them: an allowance."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.server.lean.frames import ConnectionFault, ErrorCode


@dataclass(frozen=True, slots=True)
class LeanOptions:
    """
    Attributes:
        max_receive_bytes: largest message taken; beyond it the stream ends with RESOURCE_EXHAUSTED. One message may
            hold a whole buffered body.
        max_concurrent_streams: per connection; a stream beyond it is refused. Envoy opens more connections instead.
        envoys_streams: per connection, what Envoy is asked to keep to; `None`: the bound itself. A lower number makes
            it open more connections, which several processes can share. What it sends before it has heard of that is
            still taken. Another peer might wait instead, so as soon as one shows itself it is told the bound.
        max_connections: one more is closed at once, so that idle peers cannot use up the file descriptors.
        max_frame_bytes: largest frame taken, and written. 64 KiB holds most bodies' chunks in one piece; larger ones
            gain nothing and make other streams wait.
        connection_window_bytes, stream_window_bytes: what the peer may send before it hears from us. A stream's is
            enough for gigabytes per second on a local network; they also bound what a stuck stream can pile up.
        max_header_bytes: of one header block, as sent and as decoded (which counts 32 bytes more per header, as
            HTTP/2 does). gRPC's own default is 8 KiB and Envoy's requests to us are a tenth of it.
        max_headers: of one block. Envoy's own limit is 100.
        max_unfinished_bytes: per connection, of messages that have begun and not ended; beyond it the stream that
            goes on ends with RESOURCE_EXHAUSTED. Room for four of the largest messages.
        high_water_bytes: a stream that has this much unsent gets no more window until it is sent.
        max_unsent_bytes: the same over all streams of a connection.
        write_buffer_bytes: unsent in the socket; beyond it nothing more is read from that peer.
        reset_burst, resets_per_s: streams that may be reset before they said anything, or for a fault. Envoy's speak at
            once, so this is for accidents; a stream that spoke before it was reset cost no less than a request.
        chatter_burst, chatter_per_s: frames that may come which carry nothing (PING, SETTINGS, PRIORITY, GOAWAY, empty
            DATA and header fragments, trailers of streams that have ended, unknown ones). gRPC clients ping a few times
            per second to size their windows.
        handshake_timeout_s: from a connection to its first SETTINGS frame, and of TLS.
        keepalive_s: silence after which a ping is sent.
        keepalive_timeout_s: and from then to the end of the connection, if nothing comes.
        idle_timeout_s: without a stream, until the connection is closed in good order. Envoy closes after an hour by
            its own default, so it is the first.
        header_cache_entries: decoded header blocks kept per connection. Envoy sends a handful of different ones.
    """

    max_receive_bytes: int = 32 * 2**20
    max_concurrent_streams: int = 10_000
    envoys_streams: int | None = None
    max_connections: int = 4_096
    max_frame_bytes: int = 64 * 2**10
    connection_window_bytes: int = 16 * 2**20
    stream_window_bytes: int = 2**20
    max_header_bytes: int = 16 * 2**10
    max_headers: int = 128
    max_unfinished_bytes: int = 128 * 2**20
    high_water_bytes: int = 2**20
    max_unsent_bytes: int = 64 * 2**20
    write_buffer_bytes: int = 2**20
    reset_burst: int = 1_000
    resets_per_s: float = 100.0
    chatter_burst: int = 1_000
    chatter_per_s: float = 100.0
    handshake_timeout_s: float = 10.0
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    idle_timeout_s: float = 7_200.0
    header_cache_entries: int = 256


class Allowance:
    """So many at once, and so many per second: a token bucket. The clock is read only when it runs dry."""

    def __init__(self, what: str, burst: int, per_s: float, clock: Callable[[], float]) -> None:
        self._what = what
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._left = float(burst)
        self._filled_s = clock()

    def spend(self, amount: int = 1) -> None:
        """Raises `ConnectionFault` (ENHANCE_YOUR_CALM) if it was too much."""
        self._left -= amount
        if self._left < 0:
            now_s = self._clock()
            self._left = min(self._left + (now_s - self._filled_s) * self._per_s, self._burst)
            self._filled_s = now_s
            if self._left < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self._what}")
