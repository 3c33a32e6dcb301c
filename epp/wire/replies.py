"""Writes what we say: serialized `ProcessingResponse`s that hold only what changes, never an echo of headers.

Nearly all replies are the same few over and over: an empty one, a route to one of the pool's endpoints, a chunk that is
passed on as it came. So they are written by hand, field by field, and what comes again is written once: the empty ones
for good, routes by destination, and what stands before a chunk by its length.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from epp.wire import ext_proc_pb2 as pb
from epp.wire import inner
from epp.wire.events import BodyMode, Headers, Rejection, RequestReady, Route
from epp.wire.inner import CONTENT_LENGTH, header_mutation, set_header
from epp.wire.names import DESTINATION, DESTINATION_SCORES, LB_NAMESPACE, STRIPPED_FROM_CLIENTS
from epp.wire.protobuf import field, varint
from epp.wire.table import Kind, Side

# Envoy takes pieces of any size; proxies with a cap of 64 KiB per message do not. llm-d uses the same number.
MAX_PIECE_BYTES: Final = 62_000

_STRIPPED: Final = frozenset(STRIPPED_FROM_CLIENTS)

# The nearest gRPC status of an HTTP status that we may answer; any other is UNKNOWN (2).
_GRPC_STATUS: Final = {
    400: 3,  # INVALID_ARGUMENT
    401: 16,  # UNAUTHENTICATED
    403: 7,  # PERMISSION_DENIED
    404: 5,  # NOT_FOUND
    408: 4,  # DEADLINE_EXCEEDED
    409: 10,  # ABORTED
    412: 9,  # FAILED_PRECONDITION
    413: 8,  # RESOURCE_EXHAUSTED, as gRPC itself calls a message that is too large
    415: 3,
    422: 3,
    429: 8,
    500: 13,  # INTERNAL
    501: 12,  # UNIMPLEMENTED
    502: 14,  # UNAVAILABLE
    503: 14,
    504: 4,
}


# --- the fields that we write: tags, which are a field's number and wire type -----------------------------------------

# Of `ProcessingResponse`, by the part of a message that it answers:
_HEADERS_REPLY: Final = {Side.REQUEST: 0x0A, Side.RESPONSE: 0x12}
_BODY_REPLY: Final = {Side.REQUEST: 0x1A, Side.RESPONSE: 0x22}
_TRAILERS_REPLY: Final = {Side.REQUEST: 0x2A, Side.RESPONSE: 0x32}
_DYNAMIC_METADATA: Final = 0x42
# Of the answer to headers or a body, and what is in it (`CommonResponse`):
_RESPONSE: Final = 0x0A
_HEADER_MUTATION: Final = 0x12
_BODY_MUTATION: Final = 0x1A
_CLEAR_ROUTE_CACHE: Final = b"\x28\x01"
# `BodyMutation` and `StreamedBodyResponse`:
_BODY: Final = 0x0A
_CLEAR_BODY: Final = b"\x10\x01"
_STREAMED_RESPONSE: Final = 0x1A
_END_OF_STREAM: Final = b"\x10\x01"

# --- the replies ------------------------------------------------------------------------------------------------------


# The reply that changes nothing, to each part of a message.
_EMPTY: Final = {
    (side, kind): field(tags[side], b"")
    for kind, tags in {
        Kind.HEADERS: _HEADERS_REPLY,
        Kind.HEADERS_END: _HEADERS_REPLY,
        Kind.BODY: _BODY_REPLY,
        Kind.BODY_END: _BODY_REPLY,
        Kind.TRAILERS: _TRAILERS_REPLY,
    }.items()
    for side in Side
}

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_HEADERS: Final = Kind.HEADERS
_TRAILERS: Final = Kind.TRAILERS
_BODY_PART: Final = Kind.BODY
_BODY_END: Final = Kind.BODY_END
_REQUEST: Final = Side.REQUEST
_RESPONSE_SIDE: Final = Side.RESPONSE
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_BUFFERED: Final = BodyMode.BUFFERED
_NONE: Final = BodyMode.NONE


def empty(side: Side, kind: Kind) -> bytes:
    return _EMPTY[side, kind]


def route(route: Route, mode: BodyMode, kind: Kind, request: RequestReady) -> list[bytes]:
    """The replies that send the request on, as the answer to its part `kind`."""
    # A body that was not shown whole cannot be replaced: the rest would follow the new one.
    new_body = route.body if request.body is not None and request.body_complete else None
    if mode is not _FULL_DUPLEX:
        return [_route(route, mode, kind, request.headers, new_body)]
    messages = [_route(route, mode, _HEADERS, request.headers, new_body)]
    if request.body is not None:
        has_trailers = kind is _TRAILERS
        messages += streamed_body(_REQUEST, new_body if new_body is not None else [request.body], not has_trailers)
        if has_trailers:
            messages.append(empty(_REQUEST, _TRAILERS))
    return messages


def _route(route: Route, mode: BodyMode, kind: Kind, headers: Headers, new_body: Sequence[bytes] | None) -> bytes:
    if kind is _TRAILERS:
        # Too late for headers; the metadata still routes where Envoy reads it.
        return empty(_REQUEST, kind) + _metadata(route)
    is_body = kind in (_BODY_PART, _BODY_END)
    to_remove: Sequence[str] = ()
    if not _STRIPPED.isdisjoint(headers.last_values):
        values = headers.last_values
        to_remove = [name for name in STRIPPED_FROM_CLIENTS if name in values]
    if route.set_headers or route.remove_headers or new_body is not None:
        to_remove = [*to_remove, *route.remove_headers]
        if new_body is not None and mode is not _BUFFERED:
            to_remove.append(CONTENT_LENGTH)
        to_set = {DESTINATION: route.destination}
        for name, value in route.set_headers.items():
            to_set.setdefault(name.lower(), value)
        body = b"".join(new_body) if new_body is not None and is_body else None
        answer = _changed(is_body, header_mutation(to_set, to_remove), body, mode)
    else:
        answer = _only_route(route.destination, is_body, tuple(to_remove))
    return answer + _metadata(route)


@lru_cache(4096)
def _only_route(destination: str, is_body: bool, stripped: tuple[str, ...]) -> bytes:
    """The answer to a request's headers or body that changes nothing but where it goes, and takes off what clients may
    tell us and nobody else: many give a target with every request."""
    return _changed(is_body, header_mutation({DESTINATION: destination}, stripped), None, _NONE)


def _changed(is_body: bool, mutation: bytes, body: bytes | None, mode: BodyMode) -> bytes:
    """The answer to a request's headers or body that changes its headers, and with it the route."""
    tags = _BODY_REPLY if is_body else _HEADERS_REPLY
    changes = _common(mutation, body, mode) + _CLEAR_ROUTE_CACHE
    return field(tags[_REQUEST], field(_RESPONSE, changes))


def _metadata(route: Route) -> bytes:
    """What goes with a route into Envoy's dynamic metadata."""
    if route.scores is None:
        return _only_destination(route.destination)
    scores = (inner.entry(address, inner.number(s)) for address, s in route.scores.items() if math.isfinite(s))
    return _lb_metadata(
        inner.entry(DESTINATION, inner.string(route.destination)),
        inner.entry(DESTINATION_SCORES, inner.struct_of(*scores)),
    )


@lru_cache(4096)
def _only_destination(destination: str) -> bytes:
    return _lb_metadata(inner.entry(DESTINATION, inner.string(destination)))


def _lb_metadata(*entries: bytes) -> bytes:
    return field(_DYNAMIC_METADATA, inner.entry(LB_NAMESPACE, inner.struct_of(*entries)))


def response_headers(set_headers: Mapping[str, str], remove_content_length: bool) -> bytes:
    if not set_headers and not remove_content_length:
        return empty(_RESPONSE_SIDE, _HEADERS)
    mutation = header_mutation(set_headers, [CONTENT_LENGTH] if remove_content_length else [])
    return field(_HEADERS_REPLY[_RESPONSE_SIDE], field(_RESPONSE, field(_HEADER_MUTATION, mutation)))


def streamed_body(side: Side, parts: Iterable[bytes], end: bool) -> list[bytes]:
    """The replies that carry a body in FULL_DUPLEX_STREAMED; the last one carries the end of the stream if `end`."""
    pieces = list(_pieces(parts))
    if end and not pieces:
        pieces.append(b"")
    replies = []
    for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
        ends = end and not left
        # One copy of the bytes, from where they are to where they go.
        replies.append(b"".join((_streamed_head(side, len(piece), ends), piece, _END_OF_STREAM if ends else b"")))
    return replies


def streamed_chunk(side: Side, data: bytes, end: bool) -> bytes:
    """What `streamed_body` makes of a chunk that is one piece, and not empty unless it is the end."""
    if end:
        return _streamed_head(side, len(data), True) + data + _END_OF_STREAM
    return _streamed_head(side, len(data), False) + data


@lru_cache(4096)
def _streamed_head(side: Side, size: int, ends: bool) -> bytes:
    """What stands before a piece of so many bytes."""
    head = b"%c%b" % (_BODY, varint(size)) if size else b""
    following = size + (len(_END_OF_STREAM) if ends else 0)
    for tag in (_STREAMED_RESPONSE, _BODY_MUTATION, _RESPONSE, _BODY_REPLY[side]):
        head = b"%c%b%b" % (tag, varint(len(head) + following), head)
    return head


def replaced_chunk(body: bytes) -> bytes:
    """The reply to a response chunk in STREAMED that puts other bytes, or none, in its place."""
    mutation = field(_BODY, body) if body else _CLEAR_BODY
    return field(_BODY_REPLY[_RESPONSE_SIDE], field(_RESPONSE, field(_BODY_MUTATION, mutation)))


def replaced_body(body: bytes, mode: BodyMode) -> bytes:
    """The reply to a whole response body that puts another one in its place; in BUFFERED its length too."""
    return field(_BODY_REPLY[_RESPONSE_SIDE], field(_RESPONSE, _common(b"", body, mode)))


def immediate(rejection: Rejection, grpc: bool) -> bytes:
    """The reply that answers the client ourselves.

    Args:
        grpc: the client speaks gRPC, where Envoy turns status and body into trailers and owns the content-type.
    """
    reply = pb.ProcessingResponse()
    answer = reply.immediate_response
    answer.status.code = cast("pb.StatusCode", rejection.status)  # any number, the enum is open
    headers = {name.lower(): value for name, value in rejection.headers.items()}
    if grpc:
        answer.grpc_status.status = _GRPC_STATUS.get(rejection.status, 2)
        headers.pop("content-type", None)
    else:
        headers.setdefault("content-type", "application/json")
    answer.headers.MergeFromString(header_mutation(headers))
    answer.body = rejection.body
    answer.details = rejection.details
    return reply.SerializeToString()


def is_grpc(headers: Headers) -> bool:
    content_type = headers.get("content-type") or ""
    return content_type == "application/grpc" or content_type.startswith(("application/grpc+", "application/grpc;"))


def _common(mutation: bytes, body: bytes | None, mode: BodyMode) -> bytes:
    """The changes of headers, and those that come with another body."""
    if body is None:
        return field(_HEADER_MUTATION, mutation)
    if mode is _BUFFERED:  # only there does the content-length stay with the message, and must match
        mutation += set_header(CONTENT_LENGTH, str(len(body)))
    # An empty body is still one that takes the place of another.
    return field(_HEADER_MUTATION, mutation) + field(_BODY_MUTATION, field(_BODY, body))


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    for part in parts:
        if len(part) > MAX_PIECE_BYTES:
            view = memoryview(part)
            for start in range(0, len(part), MAX_PIECE_BYTES):
                yield view[start : start + MAX_PIECE_BYTES]
        elif part:
            yield part
