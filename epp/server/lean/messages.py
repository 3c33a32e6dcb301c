"""The bytes of a stream to gRPC messages: a flag, a length, and so many bytes, however frames cut them."""

import struct
import zlib
from collections.abc import Iterator

from epp.server.lean.status import RpcFault, Status

IDENTITY = b"identity"
# By name, what zlib needs to know to read it.
_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ENCODINGS = (IDENTITY, *_WINDOW_BITS)

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")


def prefix(length: int) -> bytes:
    """What stands before an uncompressed message of that length."""
    return _PREFIX.pack(0, length)


class MessageReader:
    """One stream's messages. The pieces of one are gathered in one growing buffer, so many cost no more than few.

    Attributes:
        unfinished_bytes: held of a message that has begun and not ended.
    """

    __slots__ = ("_encoding", "_max_bytes", "_needed_bytes", "_rest", "unfinished_bytes")

    def __init__(self, encoding: bytes, max_bytes: int) -> None:
        """
        Args:
            encoding: what the call announced; one of `ENCODINGS`.
            max_bytes: of one message, also once it is decompressed.
        """
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._rest: bytearray | None = None  # of a message that has begun
        self._needed_bytes = self.unfinished_bytes = 0

    def drop(self) -> None:
        """Forget a message that has begun. What follows would be read as a new one."""
        self._rest = None
        self.unfinished_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data` completes. Raises `RpcFault`."""
        if self._rest is not None:
            self._rest += data
            self.unfinished_bytes = len(self._rest)
            if self.unfinished_bytes < self._needed_bytes:
                return
            data = bytes(self._rest)
            self.drop()
        at, size = 0, len(data)
        needed = PREFIX_BYTES
        while size - at >= PREFIX_BYTES:
            flag, length = _PREFIX.unpack_from(data, at)
            if length > self._max_bytes:
                raise RpcFault(Status.RESOURCE_EXHAUSTED, f"a message larger than {self._max_bytes} bytes")
            start = at + PREFIX_BYTES
            end = start + length
            if end > size:
                needed = end - at
                break
            yield self._decompress(flag, data[start:end]) if flag else data[start:end]
            at = end
        if at < size:
            self._rest = bytearray(data[at:])
            self._needed_bytes = needed
            self.unfinished_bytes = size - at

    def _decompress(self, flag: int, data: bytes) -> bytes:
        bits = _WINDOW_BITS.get(self._encoding)
        if flag != 1 or bits is None:
            raise RpcFault(Status.INTERNAL, "a message compressed in a way that was not announced")
        decompressor = zlib.decompressobj(bits)
        try:
            message = decompressor.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise RpcFault(Status.INTERNAL, "a compressed message that cannot be read") from None
        if len(message) > self._max_bytes:
            raise RpcFault(Status.RESOURCE_EXHAUSTED, f"a message larger than {self._max_bytes} bytes")
        if not decompressor.eof or decompressor.unused_data:
            raise RpcFault(Status.INTERNAL, "a compressed message that cannot be read")
        return message
