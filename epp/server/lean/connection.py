"""One HTTP/2 connection, without its I/O (RFC 9113): bytes in, bytes out, and what they mean for its streams.

The owner feeds `receive` with what was read and writes what `take_output` gives, which after `closing` is the last;
then it calls `after_output`, for what no output has to wait for.
Nothing raises: a peer that breaks the protocol gets a GOAWAY that says so.

Streams that have ended are forgotten at once. Frames of theirs may still be under way, so a frame for a stream with a
known number and no state is dropped; only one for a stream that was never opened is an offence.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from epp.server.lean import frames
from epp.server.lean.calls import Calls, Clockwork
from epp.server.lean.frames import ConnectionFault, ErrorCode, FrameReader, StreamFault
from epp.server.lean.headers import HeaderReader
from epp.server.lean.limits import Allowance, LeanOptions
from epp.server.lean.sending import Bytes
from epp.server.lean.stream import Method, ReceiveWindow

logger = logging.getLogger(__name__)

# Told in a PING right after the first GOAWAY; its echo says that the peer has seen both.
DRAIN_PING: Final = b"draining"


class Connection:
    """The server's side of one connection.

    Attributes:
        established: the peer has spoken HTTP/2 and acknowledged our settings.
        closing: after the output that is there now, nothing more is said.
        last_stream_id: the highest that the peer has opened.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], options: LeanOptions, time: Clockwork, wake: Callable[[], None]
    ) -> None:
        """
        Args:
            methods: by path.
            wake: called when there is output that no `receive` has caused.
        """
        self._options = options
        self.established = self.closing = False
        self.last_stream_id = 0
        self._calls = Calls(methods, options, time, wake)
        self._sender = self._calls.sender
        self._window = ReceiveWindow(options.connection_window_bytes)
        self._chatter = Allowance("frames without content", options.chatter_burst, options.chatter_per_s, time.clock)
        self._preface: bytearray | None = bytearray()
        self._settings_seen = False
        self._frames = FrameReader(options.max_frame_bytes)
        self._headers = HeaderReader(options)
        self._block: tuple[int, int, bytearray] | None = None  # a header block that goes on: stream, flags, so far
        self._draining = False
        self._final = False  # no more streams are taken
        self._on_frame = {
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }
        self._greet()

    def _greet(self) -> None:
        options = self._options
        self._asks_for_few = options.envoys_streams is not None
        settings = {
            frames.HEADER_TABLE_SIZE: 0,
            frames.MAX_CONCURRENT_STREAMS: options.envoys_streams or options.max_concurrent_streams,
            frames.INITIAL_WINDOW_SIZE: options.stream_window_bytes,
            frames.MAX_FRAME_SIZE: options.max_frame_bytes,
            frames.MAX_HEADER_LIST_SIZE: options.max_header_bytes,
        }
        self._sender.out.append(frames.settings_frame(settings))
        if (more := options.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES) > 0:
            self._sender.out.append(frames.window_update(0, more))

    # --- for the owner ------------------------------------------------------------------------------------------------

    @property
    def open_streams(self) -> int:
        return len(self._calls)

    @property
    def unsent_bytes(self) -> int:
        """Of messages, over all streams."""
        return self._sender.unsent_bytes

    def receive(self, data: bytes) -> None:
        """Take what was read."""
        if self.closing:
            return
        self._sender.corked = True
        try:
            self._receive(data)
        except ConnectionFault as fault:
            self._break_off(fault)
        except Exception:  # a bug, and this peer's connection is in no known state
            logger.exception("a connection ended by an unexpected error")
            self._break_off(ConnectionFault(ErrorCode.INTERNAL_ERROR, "unexpected error"))
        self._sender.corked = False

    def take_output(self) -> list[Bytes]:
        """What is to be written now."""
        sender = self._sender
        if sender.busy:
            sender.corked = True
            sender.flush()
            sender.corked = False
        if self._window.low and sender.unsent_bytes <= self._options.max_unsent_bytes:
            sender.out.append(frames.window_update(0, self._window.top_up()))
        if self._final and not self._calls:
            self.closing = True
        out, sender.out = sender.out, []
        return out

    def after_output(self) -> None:
        """Do what was put off until the output was written (`epp.server.transport.Stream.afterwards`)."""
        sender = self._sender
        while sender.put_off_actions:
            actions, sender.put_off_actions = sender.put_off_actions, []
            for action in actions:
                try:
                    action()
                except Exception:  # a bug, and nobody's stream waits for it
                    logger.exception("what was put off failed")

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._sender.out.append(frames.frame(frames.PING, 0, 0, bytes(8)))

    def drain(self) -> None:
        """Announce the end. Streams that are under way are still taken, until the peer has heard it."""
        if not self._draining:
            self._draining = True
            self._sender.out.append(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR, "draining"))
            self._sender.out.append(frames.frame(frames.PING, 0, 0, DRAIN_PING))

    def stop_taking_streams(self) -> None:
        """The second half of draining: what has not come by now is not taken. Closes after the last stream."""
        if not self._final:
            self._draining = self._final = True
            self._sender.out.append(frames.goaway(self.last_stream_id, ErrorCode.NO_ERROR, "draining"))

    def cut(self) -> None:
        """End every stream now, and the connection."""
        self._break_off(ConnectionFault(ErrorCode.NO_ERROR, "shutting down"))

    def lost(self) -> None:
        """The connection is gone."""
        self.closing = True
        self._calls.cut()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._preface is not None:
            self._preface += data
            if not frames.PREFACE.startswith(self._preface[: len(frames.PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
            if len(self._preface) < len(frames.PREFACE):
                return
            data, self._preface = bytes(self._preface[len(frames.PREFACE) :]), None
        on_frame = self._on_frame
        for kind, flags, stream_id, held, start, end in self._frames.feed(data):
            if self._block is not None and kind != frames.CONTINUATION:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame within a header block")
            if not self._settings_seen and kind != frames.SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no SETTINGS first")
            try:
                if kind == frames.DATA:
                    self._on_data(flags, stream_id, held, start, end)
                elif kind <= frames.CONTINUATION:
                    on_frame[kind](flags, stream_id, held[start:end])
                else:
                    self._chatter.spend()
            except StreamFault as fault:
                self._calls.reset(stream_id, fault.code)

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        size = end - start
        self._window.take(size)
        stream = self._calls.streams.get(stream_id)
        ends = flags & frames.END_STREAM
        if not size and not ends:
            self._chatter.spend()
        if stream is None:
            self._known(stream_id)
            return
        stream.receivable_bytes -= size
        if stream.receivable_bytes < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allowed")
        if stream.half_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED)
        if flags & frames.PADDED:
            data = frames.unpad(flags, data[start:end])
            start, end = 0, len(data)
            if not data:
                self._chatter.spend()
        if end > start and not stream.take_whole(data, start, end):
            self._calls.receive(stream, data, start, end)
        if ends:
            stream.half_close()
        elif stream.receivable_bytes * 2 <= self._options.stream_window_bytes:
            self._calls.top_up(stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a request on a stream that is not the client's")
        fragment = frames.unpad(flags, payload)
        if flags & frames.PRIORITIZED:
            if len(fragment) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame too short for its priority")
            fragment = fragment[5:]
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, flags, fragment)
        else:
            self._block = stream_id, flags, bytearray(fragment)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        _, first_flags, block = self._block
        block += payload
        if len(block) > self._options.max_header_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block too large")
        if not payload:
            self._chatter.spend()
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        if len(block) > self._options.max_header_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block too large")
        stream = self._calls.streams.get(stream_id)
        if stream is not None:
            self._headers.decode(block)
            if not flags & frames.END_STREAM:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR)
            if stream.half_closed:
                raise StreamFault(ErrorCode.STREAM_CLOSED)
            stream.half_close()
        elif stream_id <= self.last_stream_id:
            self._chatter.spend()  # trailers of a stream that we have ended; gRPC's clients send none
            self._headers.decode(block)  # the next block may build on them
        else:
            self.last_stream_id = stream_id
            call = self._headers.call(block)
            if self._final:
                raise StreamFault(ErrorCode.REFUSED_STREAM)
            if self._asks_for_few and not call.is_envoys:
                self._asks_for_few = False
                allowed = {frames.MAX_CONCURRENT_STREAMS: self._options.max_concurrent_streams}
                self._sender.out.append(frames.settings_frame(allowed))
            self._calls.open(stream_id, call, half_closed=bool(flags & frames.END_STREAM))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._chatter.spend()
        if len(payload) != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame of the wrong size")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a RST_STREAM frame of the wrong size")
        self._known(stream_id)
        self._calls.reset_by_peer(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._chatter.spend()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with content")
            self.established = True
            self._headers.table_acknowledged()
            return
        self._settings_seen = True
        settings = frames.parse_settings(payload)
        window = settings.get(frames.INITIAL_WINDOW_SIZE)
        if window is not None and window != self._sender.initial_window:
            self._chatter.spend(len(self._calls) // 100)  # it takes a look at each of them
            self._sender.initial_window_changed(window, self._calls.queues())
        if frames.MAX_FRAME_SIZE in settings:
            self._sender.frame_limit(settings[frames.MAX_FRAME_SIZE])
        self._sender.out.append(frames.SETTINGS_ACK)

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a push from a client")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._chatter.spend()
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PING frame of the wrong size")
        if not flags & frames.ACK:
            self._sender.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == DRAIN_PING and self._draining:
            self.stop_taking_streams()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._chatter.spend()
        if stream_id or len(payload) < 8:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a malformed GOAWAY")
        self.stop_taking_streams()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame of the wrong size")
        increment = int.from_bytes(payload) & frames.MAX_WINDOW_BYTES
        if not stream_id:
            self._sender.window_update(increment)
        elif (stream := self._calls.streams.get(stream_id)) is not None:
            self._sender.stream_window_update(stream.queue, increment)
        else:
            self._known(stream_id)

    def _known(self, stream_id: int) -> None:
        """Guard against frames for streams that were never opened."""
        if not stream_id or stream_id > self.last_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame for a stream that is not open")

    def _break_off(self, fault: ConnectionFault) -> None:
        if fault.code:
            logger.info("closing a connection: %s", fault.reason)
        self._sender.out.append(frames.goaway(self.last_stream_id, fault.code, fault.reason))
        self.lost()
