"""Reads what Envoy says: one serialized `ProcessingRequest` becomes one `Message`.

A message is one part of a request or response (headers, body, trailers) and what Envoy says beside it: its modes, with
the first message, and metadata. What stands beside is the same in message after message, so it is read once and found
again by its bytes. Of a body two fields count, so those are read by hand. All this holds for messages as Envoy writes
them, the part first and each field once; any other is read by protobuf alone. Both ways read alike, on any bytes; a
property test holds them to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode, Headers
from epp.wire.names import ACCESS_LOG, DESTINATION_SERVED, DESTINATION_SUBSET, LB_NAMESPACE, SUBSET_NAMESPACE
from epp.wire.protobuf import delimited
from epp.wire.table import Kind, Side

# The tags (a field's number and wire type) that headers and bodies begin with, and whether it is a body.
_PARTS = {
    0x12: (Side.REQUEST, False),
    0x1A: (Side.RESPONSE, False),
    0x22: (Side.REQUEST, True),
    0x2A: (Side.RESPONSE, True),
}
# Of `HttpBody`:
_BODY = 0x0A
_ENDS = b"\x10\x01"  # `end_of_stream`, set

# What stands beside a part is remembered up to this size: routing metadata is a tenth of it.
_MAX_REMEMBERED_BYTES = 2048


class ProtocolError(Exception):
    """The other end broke the protocol, and nothing sensible can be answered: end the stream."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy announces with its first message, and holds to from then on."""

    request: BodyMode
    response: BodyMode
    observing: bool  # Envoy sends copies and takes no answers


@dataclass(slots=True)
class Beside:
    """What a message says beside its part. Shared by all that say the same, so not to be changed.

    Attributes:
        modes: the announced ones; FULL_DUPLEX_STREAMED both ways when none are, as gateways use; `None` if one of them
            is none that we speak.
        subset: the addresses that the proxy limits the choice to; `None` if this message sets no limit. A limit that
            cannot be read allows nothing: to ignore it would send a request where it must not go.
        served_address: the server that Envoy says it used.
        access_log: Envoy's promise of access log records, as it stands there; see `epp.wire.names.ACCESS_LOG`.
    """

    modes: Modes | None
    subset: tuple[str, ...] | None
    served_address: str | None
    access_log: str | None


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
        self._beside = _NOTHING

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

    def _body(self, side: Side, data: bytes) -> Message | None:
        at, stop = delimited(data, 1)
        start = end = at
        if at < stop and data[at] == _BODY:
            start, end = delimited(data, at + 1)
        if stop > len(data) or end > stop:
            return None
        if end == stop:
            kind = Kind.BODY
        elif data[end:stop] == _ENDS:
            kind = Kind.BODY_END
        else:
            return None
        beside = self._read_beside(data[stop:])
        return None if beside is None else Message(side, kind, data[start:end], None, beside)

    def _headers(self, side: Side, data: bytes) -> Message | None:
        at, stop = delimited(data, 1)
        beside = self._read_beside(data[stop:])
        if beside is None or stop > len(data):
            return None
        return _headers(side, pb.HttpHeaders.FromString(data[at:stop]), beside, self._max_headers)

    def _read_beside(self, behind: bytes) -> Beside | None:
        """What these bytes say, which stand behind a part; `None` if they hold a part as well."""
        if behind == self._behind:
            return self._beside
        if len(behind) > _MAX_REMEMBERED_BYTES:
            return _beside_alone(behind)
        beside = _known_beside(behind)
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
    beside = _beside(proto)
    match proto.WhichOneof("request"):
        case "request_headers":
            return _headers(Side.REQUEST, proto.request_headers, beside, max_headers)
        case "response_headers":
            return _headers(Side.RESPONSE, proto.response_headers, beside, max_headers)
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
    return Message(side, Kind.BODY_END if part.end_of_stream else Kind.BODY, part.body, None, beside)


_NAME_AND_VALUE = attrgetter("key", "raw_value")


def _headers(side: Side, part: pb.HttpHeaders, beside: Beside, max_headers: int) -> Message:
    entries = part.headers.headers
    if len(entries) > max_headers:
        raise ProtocolError(f"more than {max_headers} headers")
    headers = Headers(_plain_values(entries) or _values(entries))
    if part.end_of_stream:
        kind = Kind.HEADERS_END
    elif side is Side.REQUEST and _opens_tunnel(headers):
        kind = Kind.TUNNEL
    else:
        kind = Kind.HEADERS
    return Message(side, kind, b"", headers, beside)


def _plain_values(headers: Iterable[pb.HeaderValue]) -> dict[str, str] | None:
    """Values by name as Envoy writes them: names in lower case, values in bytes, UTF-8, and not empty; else `None`.

    Headers are the bulk of what a request costs here, so each is one step; checks are of all at once.
    """
    try:
        values = {name: raw.decode() for name, raw in map(_NAME_AND_VALUE, headers)}
    except UnicodeDecodeError:
        return None
    names = "".join(values)
    return values if names.isascii() and names.islower() and "" not in values.values() else None


def _values(headers: Iterable[pb.HeaderValue]) -> dict[str, str]:
    return {v.key.lower(): _text(raw) if (raw := v.raw_value) else v.value for v in headers}


def _opens_tunnel(headers: Headers) -> bool:
    """An upgrade (RFC 9110, 7.8) or CONNECT: its bytes flow once it is granted, so none may be waited for.

    An upgrade may also be offered along with an ordinary body; then it has a body's framing.
    """
    if headers.get(":method") == "CONNECT":
        return True
    return "upgrade" in headers and headers.get("content-length") in (None, "0") and "transfer-encoding" not in headers


def _text(raw: bytes) -> str:
    """UTF-8 where it is, else Latin-1, which every byte string is. Never a lone surrogate: safe to encode later."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


# --- what stands beside them ------------------------------------------------------------------------------------------


def _beside(proto: pb.ProcessingRequest) -> Beside:
    metadata = proto.metadata_context.filter_metadata
    if not metadata:
        return Beside(_modes(proto), None, None, None)
    # `get`, for indexing a protobuf map would add the key.
    hint, lb = metadata.get(SUBSET_NAMESPACE), metadata.get(LB_NAMESPACE)
    subset = None if hint is None else _subset(hint.fields.get(DESTINATION_SUBSET))
    if lb is None:
        return Beside(_modes(proto), subset, None, None)
    return Beside(_modes(proto), subset, _text_in(lb, DESTINATION_SERVED), _text_in(lb, ACCESS_LOG))


def _beside_alone(behind: bytes) -> Beside | None:
    """Of bytes that are a message without a part; `None` if they hold one. Raises `DecodeError`."""
    proto = pb.ProcessingRequest.FromString(behind)
    return _beside(proto) if proto.WhichOneof("request") is None else None


_known_beside = lru_cache(1024)(_beside_alone)


def _modes(proto: pb.ProcessingRequest) -> Modes | None:
    observing = proto.observability_mode
    if not proto.HasField("protocol_config"):
        return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, observing)
    config = proto.protocol_config
    try:
        return Modes(BodyMode(config.request_body_mode), BodyMode(config.response_body_mode), observing)
    except ValueError:
        return None


def _text_in(struct: Struct, key: str) -> str | None:
    value = struct.fields.get(key)
    return (value.string_value or None) if value is not None else None


def _subset(hint: Value | None) -> tuple[str, ...] | None:
    if hint is None:
        return None
    match hint.WhichOneof("kind"):
        case "string_value":
            return _addresses([hint.string_value])
        case "list_value":
            # An entry that is no string reads as an empty one, and names no address.
            return _addresses(entry.string_value for entry in hint.list_value.values)
        case _:
            return ()


def _addresses(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(address for entry in entries for part in entry.split(",") if (address := part.strip()))


_NOTHING = _beside(pb.ProcessingRequest())
