"""The bytes of a stream to gRPC messages: a flag, a length, and so many bytes, however frames cut them."""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from epp.server.lean.status import RpcFault, Status

IDENTITY: Final = b"identity"
# By name, what zlib needs to know to read it.
_WINDOW_BITS: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ENCODINGS: Final = (IDENTITY, *_WINDOW_BITS)

PREFIX_BYTES: Final = 5
_PREFIX: Final = struct.Struct(">BI")


def prefix(length: int) -> bytes:
    """What stands before an uncompressed message of that length."""
    return _PREFIX.pack(0, length)


def whole_message(data: bytes, start: int, end: int, max_bytes: int) -> bytes | None:
    """The one uncompressed message that the bytes between two places are, as nearly always; else `None`."""
    length = end - start - PREFIX_BYTES
    if 0 <= length <= max_bytes and _PREFIX.unpack_from(data, start) == (0, length):
        return data[start + PREFIX_BYTES : end]
    return None


class MessageReader:
    """One stream's messages, if frames cut them. The pieces of one are gathered in one growing buffer, so many cost no
    more than few.

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
        self._rest = bytearray()  # of a message that has begun
        self._needed_bytes = PREFIX_BYTES  # of it, as far as is known
        self.unfinished_bytes = 0

    def feed(self, data: bytes, start: int, end: int) -> Iterator[bytes]:
        """The messages that the bytes between two places complete. Raises `RpcFault`."""
        piece = memoryview(data)[start:end]
        at, size = 0, len(piece)
        while at < size:
            missing = self._needed_bytes - len(self._rest)
            self._rest += piece[at : at + missing]
            at += missing
            self.unfinished_bytes = len(self._rest)
            if at > size:
                return
            flag, length = _PREFIX.unpack_from(self._rest)
            if length > self._max_bytes:
                raise RpcFault(Status.RESOURCE_EXHAUSTED, f"a message larger than {self._max_bytes} bytes")
            self._needed_bytes = PREFIX_BYTES + length
            if len(self._rest) == self._needed_bytes:
                message = bytes(memoryview(self._rest)[PREFIX_BYTES:])
                self._rest = bytearray()
                self._needed_bytes, self.unfinished_bytes = PREFIX_BYTES, 0
                yield self._decompress(flag, message) if flag else message

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
