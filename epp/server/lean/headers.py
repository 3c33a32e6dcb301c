"""Header blocks: those of calls, read; and those of answers, made once.

We announce a header table of size 0. From the moment the peer has acknowledged it, no block depends on one before: the
same bytes always mean the same. Envoy's calls differ in nothing, so nearly all of them are found in a dict. Nor do our
own blocks depend on one another: each begins by setting the table to 0 and is the same for every connection.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hpack import Decoder, Encoder, HPACKError

from epp.server.lean.frames import ConnectionFault, ErrorCode, StreamFault
from epp.server.lean.limits import LeanOptions
from epp.server.lean.messages import ENCODINGS, IDENTITY
from epp.server.lean.status import Status

HeaderList = list[tuple[bytes, bytes]]

# Blocks that are larger are not worth keeping: they are not those that come again.
_MAX_CACHED_BLOCK_BYTES: Final = 1024

_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")  # RFC 9110's token, in lower case as HTTP/2 wants it
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_CONNECTION_SPECIFIC: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ACCEPT_ENCODING: Final = b",".join(ENCODINGS).decode()


@dataclass(frozen=True, slots=True)
class Call:
    """What a call's headers say.

    Attributes:
        path: `/service/method`.
        timeout_s: how long the caller waits; `None`: for ever.
        encoding: of messages that are flagged as compressed.
        is_envoys: Envoy calls; it opens another connection when it has as many streams on one as it may.
        refusal: the block that answers a call which cannot be served, and ends it; `None` if it can.
    """

    path: bytes
    timeout_s: float | None
    encoding: bytes
    is_envoys: bool
    refusal: bytes | None


class HeaderReader:
    """Decodes one connection's header blocks."""

    def __init__(self, options: LeanOptions) -> None:
        self._options = options
        self._decoder = Decoder(options.max_header_bytes)
        self._calls: dict[bytes, Call] = {}

    def table_acknowledged(self) -> None:
        """The peer knows that our header table has size 0."""
        self._decoder.max_allowed_table_size = 0

    def call(self, block: bytes) -> Call:
        """What a call's block says. Raises `ConnectionFault` if it is no block, `StreamFault` if it is no request."""
        call = self._calls.get(block)
        # While there is a table, even a known block has to pass through it.
        if call is None or self._decoder.header_table_size:
            call = parse_call(self.decode(block))
            if not self._decoder.header_table_size and len(block) <= _MAX_CACHED_BLOCK_BYTES:
                if len(self._calls) >= self._options.header_cache_entries:
                    self._calls.clear()
                self._calls[block] = call
        return call

    def decode(self, block: bytes) -> HeaderList:
        """Raises `ConnectionFault`: the state that blocks share is lost with a bad one."""
        if block.startswith(b"\x20\x20\x20"):  # a table may be resized twice; to do nothing else is an attack
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block of table sizes")
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except HPACKError:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block that cannot be read") from None
        if len(headers) > self._options.max_headers:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many headers")
        return headers


def parse_call(headers: HeaderList) -> Call:
    """Raises `StreamFault` if these are no headers of a request (RFC 9113, section 8)."""
    values = _checked(headers)
    timeout, encoding = values.get(b"grpc-timeout"), values.get(b"grpc-encoding", IDENTITY)
    refusal, timeout_s = None, None
    if values[b":method"] != b"POST":
        refusal = http_refusal(405)
    elif not _is_grpc(values.get(b"content-type", b"")):
        refusal = http_refusal(415)
    elif encoding not in ENCODINGS:
        refusal = trailers_only(Status.UNIMPLEMENTED, "unknown grpc-encoding")
    elif timeout is not None:
        if (match := _TIMEOUT.fullmatch(timeout)) is None:
            refusal = trailers_only(Status.INTERNAL, "malformed grpc-timeout")
        else:
            timeout_s = int(match[1]) * _UNIT_S[match[2]]
    is_envoys = b"x-envoy-internal" in values or values.get(b"user-agent", b"").startswith(b"Envoy")
    return Call(values[b":path"], timeout_s, encoding, is_envoys, refusal)


def _checked(headers: HeaderList) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = {}
    regular = False
    for name, value in headers:
        if _NAME.fullmatch(name) is None or _BAD_VALUE.search(value) or name in _CONNECTION_SPECIFIC:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR)
        if name.startswith(b":"):
            if regular or name not in _PSEUDO or name in values:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR)
        else:
            regular = True
        values[name] = value
    if not values.get(b":method") or not values.get(b":scheme") or not values.get(b":path"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR)
    if values.get(b"te", b"trailers") != b"trailers":
        raise StreamFault(ErrorCode.PROTOCOL_ERROR)
    return values


def _is_grpc(content_type: bytes) -> bool:
    return content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))


# --- our own --------------------------------------------------------------------------------------------------------


def _block(*headers: tuple[str, str]) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(headers)


def _status(status: Status, message: str) -> list[tuple[str, str]]:
    return [("grpc-status", str(status.number)), *([("grpc-message", message)] if message else [])]


_CONTENT_TYPE: Final = ("content-type", "application/grpc")

RESPONSE_HEADERS: Final = _block((":status", "200"), _CONTENT_TYPE, ("grpc-accept-encoding", _ACCEPT_ENCODING))


@lru_cache(64)
def trailers(status: Status, message: str) -> bytes:
    """The block that ends a call. `message`: plain ASCII without `%`; the empty one is not sent."""
    return _block(*_status(status, message))


@lru_cache(64)
def trailers_only(status: Status, message: str) -> bytes:
    """The block that answers and ends a call at once."""
    accept = ("grpc-accept-encoding", _ACCEPT_ENCODING)
    return _block((":status", "200"), _CONTENT_TYPE, accept, *_status(status, message))


OK_TRAILERS: Final = trailers(Status.OK, "")


@lru_cache(8)
def http_refusal(code: int) -> bytes:
    """The block that answers and ends a request that is no gRPC call."""
    return _block((":status", str(code)), ("content-length", "0"))
