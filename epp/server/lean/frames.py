"""HTTP/2 frames (RFC 9113, sections 4 and 6): bytes in any pieces to frames, and the frames that we write."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Kinds.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags.
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW_BYTES: Final = 65_535
MAX_WINDOW_BYTES: Final = 2**31 - 1
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_STREAM_ID: Final = 2**31 - 1

HEAD_BYTES: Final = 9
_HEAD: Final = struct.Struct(">HBBBI")  # length (its high 16 and low 8 bits), kind, flags, stream
_SETTING: Final = struct.Struct(">HI")
_INCREMENT: Final = struct.Struct(">HBBBII")
_GOAWAY: Final = struct.Struct(">HBBBIII")

Bytes = bytes | bytearray

# Kind, flags and stream; and the payload as bytes with its place in them, for not every frame's has to be copied.
Frame = tuple[int, int, int, bytes, int, int]


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class StreamFault(Exception):
    """The peer broke the protocol in a way that ends one stream."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FrameReader:
    """Cuts a connection's bytes into frames. Holds at most one incomplete frame."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()  # of a frame that has begun
        self._needed_bytes = HEAD_BYTES  # of it, as far as is known

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Raises `ConnectionFault` at one that is too large."""
        at, size = 0, len(data)
        rest = self._rest
        while rest:  # of `data` only what belongs to this frame is copied
            missing = self._needed_bytes - len(rest)
            rest += data[at : at + missing]
            at += missing
            if at > size:
                return
            kind, flags, stream_id, length = self._head(rest, 0)
            self._needed_bytes = HEAD_BYTES + length
            if len(rest) == self._needed_bytes:
                frame = bytes(rest)
                rest.clear()
                yield kind, flags, stream_id, frame, HEAD_BYTES, len(frame)
        self._needed_bytes = HEAD_BYTES
        unpack, max_bytes = _HEAD.unpack_from, self._max_frame_bytes
        while size - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = unpack(data, at)  # `_head`, without a call for each frame
            length = high << 8 | low
            if length > max_bytes:
                raise _too_large()
            start = at + HEAD_BYTES
            at = start + length
            if at > size:
                self._needed_bytes = HEAD_BYTES + length
                at = start - HEAD_BYTES
                break
            yield kind, flags, stream_id & MAX_STREAM_ID, data, start, at
        rest += data[at:]

    def _head(self, data: Bytes, at: int) -> tuple[int, int, int, int]:
        high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
        length = high << 8 | low
        if length > self._max_frame_bytes:
            raise _too_large()
        return kind, flags, stream_id & MAX_STREAM_ID, length


def _too_large() -> ConnectionFault:
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame larger than announced")


def unpad(flags: int, payload: bytes) -> bytes:
    """The payload of a DATA or HEADERS frame without padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def parse_settings(payload: bytes) -> dict[int, int]:
    """Settings by id; of one that is repeated, the last value."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame of no whole number of settings")
    settings = dict(_SETTING.iter_unpack(payload))
    if settings.get(ENABLE_PUSH, 0) > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    if settings.get(INITIAL_WINDOW_SIZE, 0) > MAX_WINDOW_BYTES:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
    if not DEFAULT_FRAME_BYTES <= settings.get(MAX_FRAME_SIZE, DEFAULT_FRAME_BYTES) < 2**24:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
    return settings


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The nine bytes in front of a payload of `length` bytes."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in settings.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return _INCREMENT.pack(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return _INCREMENT.pack(0, 4, RST_STREAM, 0, stream_id, code)


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    debug = reason.encode()
    return _GOAWAY.pack(0, 8 + len(debug), GOAWAY, 0, 0, last_stream_id, code) + debug


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")
