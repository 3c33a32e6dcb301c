"""Messages between the parent and one worker, over a Unix socket pair.

A frame is its length, its kind, the number of a worker (whom it is from, or for), and a payload. Payloads are pickles:
both ends are one program, started by one parent, and nobody else has the socket. The parent passes on what is meant for
other workers without looking into it.
"""

import asyncio
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from epp.server.workers.messages import Kind

HEADER = struct.Struct("<IBB")
MAX_WORKERS = 255
PARENT = 255
"""Stands where a worker's number would."""


class Frame(NamedTuple):
    """
    Attributes:
        worker: see the module's text.
    """

    kind: Kind
    worker: int
    payload: bytes

    def open(self) -> Any:
        return pickle.loads(self.payload)


def packed(kind: Kind, worker: int, content: Any) -> bytes:
    """A whole frame."""
    return with_header(kind, worker, pickle.dumps(content, pickle.HIGHEST_PROTOCOL))


def with_header(kind: Kind, worker: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, worker) + payload


class FrameReader:
    """Frames out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames, start, end = [], 0, len(self._buffer)
        while end - start >= HEADER.size:
            length, kind, worker = HEADER.unpack_from(self._buffer, start)
            begins = start + HEADER.size
            if end - begins < length:
                break
            start = begins + length
            frames.append(Frame(Kind(kind), worker, bytes(self._buffer[begins:start])))
        del self._buffer[:start]
        return frames


class Channel(asyncio.Protocol):
    """One end. A frame that its receiver cannot take is that receiver's bug: it raises, and the event loop logs it."""

    def __init__(self, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def send(self, kind: Kind, content: Any = None, worker: int = PARENT) -> None:
        self.write(packed(kind, worker, content))

    def write(self, frame: bytes) -> None:
        """A frame that is packed already. After the end this does nothing."""
        if self._transport is not None:
            self._transport.write(frame)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    # --- for asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self._on_frame(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_lost()
