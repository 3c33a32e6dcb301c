"""Reads what Envoy says: one serialized `ProcessingRequest` becomes one `Message`.

Most messages are bodies, and of a body message two fields count. Those are read by hand if they stand as Envoy writes
them: the body first, and behind it what else the message says, nearly always the same as in the message before. Any
other message is read by protobuf. Both ways read alike, on any bytes; a property test holds them to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode, Headers
from epp.wire.names import ACCESS_LOG, DESTINATION_SERVED, DESTINATION_SUBSET, LB_NAMESPACE, SUBSET_NAMESPACE
from epp.wire.protobuf import delimited
from epp.wire.table import Kind, Side

# Tags, which are a field's number and wire type.
_REQUEST_BODY, _RESPONSE_BODY = 0x22, 0x2A  # of `ProcessingRequest`
_BODY = 0x0A  # of `HttpBody`
_ENDS = b"\x10\x01"  # its `end_of_stream`, set

# What stands behind a body is remembered up to this size: routing metadata is a tenth of it.
_MAX_REMEMBERED_BYTES = 2048

_EMPTY_METADATA = b"\x42\x00"  # what Envoy writes when there is none to forward
_NOTHING = pb.ProcessingRequest()


class ProtocolError(Exception):
    """The other end broke the protocol, and nothing sensible can be answered: end the stream."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy announces with its first message, and holds to from then on."""

    request: BodyMode
    response: BodyMode
    observing: bool  # Envoy sends copies and takes no answers


class Message:
    """One message of Envoy's.

    Attributes:
        kind: what part of the request or response it is, and whether it is the last one.
        body: empty unless `kind` is a body.
        headers: those of a headers message; `None` in any other.
    """

    __slots__ = ("_beside", "body", "headers", "kind", "side")

    def __init__(
        self, side: Side, kind: Kind, body: bytes, headers: Headers | None, beside: pb.ProcessingRequest
    ) -> None:
        """`beside`: the message, for all that it says beside its part. Shared, so not to be changed."""
        self.side = side
        self.kind = kind
        self.body = body
        self.headers = headers
        self._beside = beside

    def modes(self) -> Modes:
        """The announced modes; FULL_DUPLEX_STREAMED both ways when none are, as gateways use.

        Raises:
            ProtocolError: a mode that we do not speak.
        """
        beside = self._beside
        if not beside.HasField("protocol_config"):
            return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, beside.observability_mode)
        config = beside.protocol_config
        return _modes(config.request_body_mode, config.response_body_mode, beside.observability_mode)

    def subset(self) -> tuple[str, ...] | None:
        """The addresses that the proxy limits the choice to; `None` if this message sets no limit.

        A limit that cannot be read allows nothing: to ignore it would send a request where it must not go.
        """
        hint = self._metadata(SUBSET_NAMESPACE, DESTINATION_SUBSET)
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

    def status(self) -> int | None:
        """The HTTP status of response headers; `None` if it is missing or no number."""
        text = (self.headers.get(":status") if self.headers is not None else None) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) == 3 else None

    def served_address(self) -> str | None:
        """The server that Envoy says it used."""
        served = self._metadata(LB_NAMESPACE, DESTINATION_SERVED)
        return (served.string_value or None) if served is not None else None

    def access_log(self) -> str | None:
        """Envoy's promise of access log records, as it stands there; see `epp.wire.names.ACCESS_LOG`."""
        promise = self._metadata(LB_NAMESPACE, ACCESS_LOG)
        return (promise.string_value or None) if promise is not None else None

    def _metadata(self, namespace: str, key: str) -> Value | None:
        # `get`, for indexing a protobuf map would add the key.
        struct = self._beside.metadata_context.filter_metadata.get(namespace)
        return None if struct is None else struct.fields.get(key)


class Reader:
    """Reads the messages of one stream."""

    __slots__ = ("_behind", "_beside", "_max_headers")

    def __init__(self, max_headers: int) -> None:
        self._max_headers = max_headers
        # What stood behind the last body, in bytes and read: it is likely to come again.
        self._behind = _EMPTY_METADATA
        self._beside = _NOTHING

    def read(self, data: bytes) -> Message:
        """
        Raises:
            ProtocolError: the bytes are no `ProcessingRequest`, or hold nothing that we know, or too many headers.
        """
        tag = data[0] if data else 0
        if tag in (_RESPONSE_BODY, _REQUEST_BODY):
            message = self._read_body(Side.RESPONSE if tag == _RESPONSE_BODY else Side.REQUEST, data)
            if message is not None:
                return message
        return decode(data, self._max_headers)

    def _read_body(self, side: Side, data: bytes) -> Message | None:
        """A body that stands first in its message, as Envoy writes it; `None`: let protobuf see."""
        try:
            at, stop = delimited(data, 1)
            start = end = at
            if at < stop and data[at] == _BODY:
                start, end = delimited(data, at + 1)
        except (IndexError, ValueError):
            return None
        if stop > len(data) or end > stop:
            return None
        if end == stop:
            kind = Kind.BODY
        elif data[end:stop] == _ENDS:
            kind = Kind.BODY_END
        else:
            return None
        behind = data[stop:]
        if behind != self._behind:
            beside = _read_rest(behind)
            if beside is None:
                return None
            if len(behind) <= _MAX_REMEMBERED_BYTES:
                self._behind, self._beside = behind, beside
        else:
            beside = self._beside
        return Message(side, kind, data[start:end], None, beside)


def decode(data: bytes, max_headers: int) -> Message:
    """Read one message of any shape.

    Raises:
        ProtocolError: see `Reader.read`.
    """
    try:
        proto = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        raise ProtocolError("undecodable message") from None
    match proto.WhichOneof("request"):
        case "request_headers":
            message = _headers(Side.REQUEST, proto.request_headers, proto, max_headers)
            if message.kind is Kind.HEADERS and message.headers is not None and _opens_tunnel(message.headers):
                message.kind = Kind.TUNNEL
            return message
        case "response_headers":
            return _headers(Side.RESPONSE, proto.response_headers, proto, max_headers)
        case "response_body":
            return _body(Side.RESPONSE, proto.response_body, proto)
        case "request_body":
            return _body(Side.REQUEST, proto.request_body, proto)
        case "request_trailers":
            return Message(Side.REQUEST, Kind.TRAILERS, b"", None, proto)
        case "response_trailers":
            return Message(Side.RESPONSE, Kind.TRAILERS, b"", None, proto)
        case _:
            raise ProtocolError("a message of no known kind")


def _body(side: Side, part: pb.HttpBody, proto: pb.ProcessingRequest) -> Message:
    return Message(side, Kind.BODY_END if part.end_of_stream else Kind.BODY, part.body, None, proto)


_NAME_AND_VALUE = attrgetter("key", "raw_value")


def _headers(side: Side, part: pb.HttpHeaders, proto: pb.ProcessingRequest, max_headers: int) -> Message:
    headers = part.headers.headers
    if len(headers) > max_headers:
        raise ProtocolError(f"more than {max_headers} headers")
    kind = Kind.HEADERS_END if part.end_of_stream else Kind.HEADERS
    return Message(side, kind, b"", Headers(_plain_values(headers) or _values(headers)), proto)


def _plain_values(headers: Iterable[pb.HeaderValue]) -> dict[str, str] | None:
    """Values by name as Envoy writes them: names in lower case, values in bytes, UTF-8, and not empty; else `None`.

    Headers are the bulk of what a request costs here, so each is one step; checks are of all at once.
    """
    try:
        values = {name: raw.decode() for name, raw in map(_NAME_AND_VALUE, headers)}
    except UnicodeDecodeError:
        return None
    names = "".join(values)
    return values if names == names.lower() and "" not in values.values() else None


def _values(headers: Iterable[pb.HeaderValue]) -> dict[str, str]:
    return {v.key.lower(): _text(raw) if (raw := v.raw_value) else v.value for v in headers}


def _read_rest(behind: bytes) -> pb.ProcessingRequest | None:
    """What stands behind a part, which by itself is a message without one; `None` if it is not only that."""
    if not behind:
        return _NOTHING
    try:
        beside = pb.ProcessingRequest.FromString(behind)
    except DecodeError:
        return None
    return beside if beside.WhichOneof("request") is None else None


@lru_cache(64)
def _modes(request: int, response: int, observing: bool) -> Modes:
    try:
        return Modes(BodyMode(request), BodyMode(response), observing)
    except ValueError:
        raise ProtocolError("the announced body processing mode is not supported") from None


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


def _addresses(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(address for entry in entries for part in entry.split(",") if (address := part.strip()))
