"""Reads what Envoy says: one serialized `ProcessingRequest` becomes one `Message`.

A message is one part of a request or response (headers, body, trailers) and what Envoy says beside it: its modes, with
the first message, and metadata. What stands beside is the same in message after message, so it is read once and found
again by its bytes. Of a body two fields count, so those are read by hand. All this holds for messages as Envoy writes
them, the part first and each field once; any other is read by protobuf alone. Both ways read alike, on any bytes; a
property test holds them to it.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from epp.wire import ext_proc_pb2 as pb
from epp.wire.beside import NOTHING, Beside, Modes, read_alone, read_beside, remembered
from epp.wire.events import Headers
from epp.wire.header_map import header_map, name_and_value
from epp.wire.protobuf import delimited
from epp.wire.table import Kind, Side

# The tags (a field's number and wire type) that headers and bodies begin with, and whether it is a body.
_RESPONSE_BODY: Final = 0x2A
_PARTS: Final = {
    0x12: (Side.REQUEST, False),
    0x1A: (Side.RESPONSE, False),
    0x22: (Side.REQUEST, True),
    _RESPONSE_BODY: (Side.RESPONSE, True),
}
_FIRST: Final = 0x0A  # of `HttpBody.body`, `HttpHeaders.headers` and `HeaderMap.headers`
_ENDS_BODY: Final = b"\x10\x01"  # `HttpBody.end_of_stream`, set
_ENDS_HEADERS: Final = b"\x18\x01"  # `HttpHeaders.end_of_stream`, set

# What stands beside a part is remembered up to this size: routing metadata is a tenth of it.
_MAX_REMEMBERED_BYTES: Final = 2048

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_REQUEST: Final = Side.REQUEST
_BODY: Final = Kind.BODY
_BODY_END: Final = Kind.BODY_END
_HEADERS: Final = Kind.HEADERS
_HEADERS_END: Final = Kind.HEADERS_END


class ProtocolError(Exception):
    """The other end broke the protocol, and nothing sensible can be answered: end the stream."""


class Message:
    """One message of Envoy's.

    Attributes:
        kind: what part of the request or response it is, and whether it is the last one.
        body: empty unless `kind` is a body.
        headers: those of a headers message; `None` in any other.
        beside: what else it says.
    """

    __slots__ = ("beside", "body", "headers", "kind", "side")

    def __init__(self, side: Side, kind: Kind, body: bytes, headers: Headers | None, beside: Beside) -> None:
        self.side = side
        self.kind = kind
        self.body = body
        self.headers = headers
        self.beside = beside

    def modes(self) -> Modes:
        """Raises `ProtocolError` if one of them is none that we speak."""
        if self.beside.modes is None:
            raise ProtocolError("the announced body processing mode is not supported")
        return self.beside.modes

    def status(self) -> int | None:
        """The HTTP status of response headers; `None` if it is missing or no number."""
        text = (self.headers.get(":status") if self.headers is not None else None) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) == 3 else None


class Reader:
    """Reads the messages of one stream."""

    __slots__ = ("_behind", "_beside", "_max_headers")

    def __init__(self, max_headers: int) -> None:
        self._max_headers = max_headers
        # What stood behind the last part, in bytes and read: it is likely to come again.
        self._behind = b""
        self._beside = NOTHING

    def read(self, data: bytes) -> Message:
        """
        Raises:
            ProtocolError: the bytes are no `ProcessingRequest`, or hold nothing that we know, or too many headers.
        """
        message = None
        try:
            side, is_body = _PARTS[data[0]]
            message = self._body(side, data) if is_body else self._headers(side, data)
        except (LookupError, ValueError, DecodeError):  # unusual at least, and maybe wrong
            pass
        return message if message is not None else decode(data, self._max_headers)

    def response_chunk(self, data: bytes) -> bytes | None:
        """The bytes of a response body's piece that is not empty and not the last, if the message is one and says the
        same beside it as the message before; else `None`, which tells nothing. The short way for what comes most.
        """
        behind = self._behind
        stop = len(data) - len(behind)
        try:
            if data[0] != _RESPONSE_BODY or not data.endswith(behind):
                return None
            # Lengths of one byte or two; more would be beyond what a chunk has.
            size, at = data[1], 2
            if size >= 0x80:
                if data[2] >= 0x80:
                    return None
                size, at = size & 0x7F | data[2] << 7, 3
            if at + size != stop or data[at] != _FIRST:
                return None
            size = data[at + 1]
            at += 2
            if size >= 0x80:
                if data[at] >= 0x80:
                    return None
                size = size & 0x7F | data[at] << 7
                at += 1
        except IndexError:
            return None
        return data[at:stop] if size and at + size == stop else None

    def _body(self, side: Side, data: bytes) -> Message | None:
        at, stop = delimited(data, 1)
        start = end = at
        if at < stop and data[at] == _FIRST:
            start, end = delimited(data, at + 1)
        if stop > len(data) or end > stop:
            return None
        if end == stop:
            kind = _BODY
        elif data[end:stop] == _ENDS_BODY:
            kind = _BODY_END
        else:
            return None
        beside = self._read_beside(data[stop:])
        return None if beside is None else Message(side, kind, data[start:end], None, beside)

    def _headers(self, side: Side, data: bytes) -> Message | None:
        at, stop = delimited(data, 1)
        if stop > len(data) or at == stop or data[at] != _FIRST:
            return None
        at, end = delimited(data, at + 1)
        ends = end != stop
        if ends and data[end:stop] != _ENDS_HEADERS:
            return None
        values = header_map(data, at, end, self._max_headers)
        beside = self._read_beside(data[stop:])
        return None if values is None or beside is None else _headers(side, values, ends, beside)

    def _read_beside(self, behind: bytes) -> Beside | None:
        """What these bytes say, which stand behind a part; `None` if they hold a part as well."""
        if behind == self._behind:
            return self._beside
        if len(behind) > _MAX_REMEMBERED_BYTES:
            return read_alone(behind)
        beside = remembered(behind)
        if beside is not None:
            self._behind, self._beside = behind, beside
        return beside


def decode(data: bytes, max_headers: int) -> Message:
    """Read one message of any shape.

    Raises:
        ProtocolError: see `Reader.read`.
    """
    try:
        proto = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        raise ProtocolError("undecodable message") from None
    beside = read_beside(proto)
    match proto.WhichOneof("request"):
        case "request_headers":
            part = proto.request_headers
            return _headers(Side.REQUEST, _values(part, max_headers), part.end_of_stream, beside)
        case "response_headers":
            part = proto.response_headers
            return _headers(Side.RESPONSE, _values(part, max_headers), part.end_of_stream, beside)
        case "request_body":
            return _body(Side.REQUEST, proto.request_body, beside)
        case "response_body":
            return _body(Side.RESPONSE, proto.response_body, beside)
        case "request_trailers":
            return Message(Side.REQUEST, Kind.TRAILERS, b"", None, beside)
        case "response_trailers":
            return Message(Side.RESPONSE, Kind.TRAILERS, b"", None, beside)
        case _:
            raise ProtocolError("a message of no known kind")


# --- the parts --------------------------------------------------------------------------------------------------------


def _body(side: Side, part: pb.HttpBody, beside: Beside) -> Message:
    return Message(side, _BODY_END if part.end_of_stream else _BODY, part.body, None, beside)


def _headers(side: Side, values: Mapping[str, str], ends: bool, beside: Beside) -> Message:
    headers = Headers(values)
    if ends:
        kind = _HEADERS_END
    elif side is _REQUEST and _opens_tunnel(headers):
        kind = Kind.TUNNEL
    else:
        kind = _HEADERS
    return Message(side, kind, b"", headers, beside)


def _values(part: pb.HttpHeaders, max_headers: int) -> dict[str, str]:
    entries = part.headers.headers
    if len(entries) > max_headers:
        raise ProtocolError(f"more than {max_headers} headers")
    return dict(map(name_and_value, entries))


def _opens_tunnel(headers: Headers) -> bool:
    """An upgrade (RFC 9110, 7.8) or CONNECT: its bytes flow once it is granted, so none may be waited for.

    An upgrade may also be offered along with an ordinary body; then it has a body's framing.
    """
    if headers.get(":method") == "CONNECT":
        return True
    return "upgrade" in headers and headers.get("content-length") in (None, "0") and "transfer-encoding" not in headers
