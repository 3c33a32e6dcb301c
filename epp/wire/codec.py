"""Reads what Envoy says: one serialized `ProcessingRequest` becomes one `Message`."""

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode, Headers
from epp.wire.names import DESTINATION_SERVED, DESTINATION_SUBSET, LB_NAMESPACE, SUBSET_NAMESPACE
from epp.wire.table import Kind, Side


class ProtocolError(Exception):
    """The other end broke the protocol, and nothing sensible can be answered: end the stream."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy announces with its first message, and holds to from then on."""

    request: BodyMode
    response: BodyMode
    observing: bool  # Envoy sends copies and takes no answers


@dataclass(slots=True)
class Message:
    """One message of Envoy's.

    Attributes:
        kind: what part of the request or response it is, and whether it is the last one.
        body: empty unless `kind` is a body.
        headers: those of a headers message; `None` in any other.
    """

    side: Side
    kind: Kind
    body: bytes
    headers: Headers | None
    _proto: pb.ProcessingRequest

    def modes(self) -> Modes:
        """The announced modes; FULL_DUPLEX_STREAMED both ways when none are, as gateways use.

        Raises:
            ProtocolError: a mode that we do not speak.
        """
        proto = self._proto
        if not proto.HasField("protocol_config"):
            return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, proto.observability_mode)
        config = proto.protocol_config
        try:
            request, response = BodyMode(config.request_body_mode), BodyMode(config.response_body_mode)
        except ValueError:
            raise ProtocolError("the announced body processing mode is not supported") from None
        return Modes(request, response, proto.observability_mode)

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

    def _metadata(self, namespace: str, key: str) -> Value | None:
        # `get`, for indexing a protobuf map would add the key.
        struct = self._proto.metadata_context.filter_metadata.get(namespace)
        return None if struct is None else struct.fields.get(key)


def decode(data: bytes, max_headers: int) -> Message:
    """Read one message.

    Raises:
        ProtocolError: the bytes are no `ProcessingRequest`, or hold nothing that we know, or more than `max_headers`.
    """
    try:
        proto = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        raise ProtocolError("undecodable message") from None
    match proto.WhichOneof("request"):
        case "response_body":
            return _body(Side.RESPONSE, proto.response_body, proto)
        case "request_body":
            return _body(Side.REQUEST, proto.request_body, proto)
        case "request_headers":
            message = _headers(Side.REQUEST, proto.request_headers, proto, max_headers)
            if message.kind is Kind.HEADERS and message.headers is not None and _opens_tunnel(message.headers):
                message.kind = Kind.TUNNEL
            return message
        case "response_headers":
            return _headers(Side.RESPONSE, proto.response_headers, proto, max_headers)
        case "request_trailers":
            return Message(Side.REQUEST, Kind.TRAILERS, b"", None, proto)
        case "response_trailers":
            return Message(Side.RESPONSE, Kind.TRAILERS, b"", None, proto)
        case _:
            raise ProtocolError("a message of no known kind")


def _body(side: Side, part: pb.HttpBody, proto: pb.ProcessingRequest) -> Message:
    return Message(side, Kind.BODY_END if part.end_of_stream else Kind.BODY, part.body, None, proto)


def _headers(side: Side, part: pb.HttpHeaders, proto: pb.ProcessingRequest, max_headers: int) -> Message:
    values = part.headers.headers
    if len(values) > max_headers:
        raise ProtocolError(f"more than {max_headers} headers")
    headers = Headers((v.key, _text(raw) if (raw := v.raw_value) else v.value) for v in values)
    return Message(side, Kind.HEADERS_END if part.end_of_stream else Kind.HEADERS, b"", headers, proto)


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
