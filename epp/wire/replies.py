"""Writes what we say: serialized `ProcessingResponse`s that hold only what changes, never an echo of headers."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode, Headers, Rejection, RequestReady, Route
from epp.wire.names import DESTINATION, DESTINATION_SCORES, LB_NAMESPACE, STRIPPED_FROM_CLIENTS
from epp.wire.table import Kind, Side

# Envoy takes pieces of any size; proxies with a cap of 64 KiB per message do not. llm-d uses the same number.
MAX_PIECE_BYTES = 62_000

# Envoy fails a request whose header mutation exceeds its own limit of headers, 100 by default.
MAX_SET_HEADERS = 100

_CONTENT_LENGTH = "content-length"

# The nearest gRPC status of an HTTP status that we may answer; any other is UNKNOWN (2).
_GRPC_STATUS = {
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


# The reply that changes nothing, to each part of a message.
_EMPTY_HEADERS = {
    Side.REQUEST: pb.ProcessingResponse(request_headers=pb.HeadersResponse()).SerializeToString(),
    Side.RESPONSE: pb.ProcessingResponse(response_headers=pb.HeadersResponse()).SerializeToString(),
}
_EMPTY_BODY = {
    Side.REQUEST: pb.ProcessingResponse(request_body=pb.BodyResponse()).SerializeToString(),
    Side.RESPONSE: pb.ProcessingResponse(response_body=pb.BodyResponse()).SerializeToString(),
}
_EMPTY_TRAILERS = {
    Side.REQUEST: pb.ProcessingResponse(request_trailers=pb.TrailersResponse()).SerializeToString(),
    Side.RESPONSE: pb.ProcessingResponse(response_trailers=pb.TrailersResponse()).SerializeToString(),
}
_EMPTY = {
    Kind.HEADERS: _EMPTY_HEADERS,
    Kind.HEADERS_END: _EMPTY_HEADERS,
    Kind.BODY: _EMPTY_BODY,
    Kind.BODY_END: _EMPTY_BODY,
    Kind.TRAILERS: _EMPTY_TRAILERS,
}


def empty(side: Side, kind: Kind) -> bytes:
    return _EMPTY[kind][side]


def route(route: Route, mode: BodyMode, kind: Kind, request: RequestReady) -> list[bytes]:
    """The replies that send the request on, as the answer to its part `kind`."""
    # A body that was not shown whole cannot be replaced: the rest would follow the new one.
    new_body = route.body if request.body is not None and request.body_complete else None
    if mode is not BodyMode.FULL_DUPLEX_STREAMED:
        return [_route(route, mode, kind, request.headers, new_body)]
    messages = [_route(route, mode, Kind.HEADERS, request.headers, new_body)]
    if request.body is not None:
        has_trailers = kind is Kind.TRAILERS
        messages += streamed_body(Side.REQUEST, new_body if new_body is not None else [request.body], not has_trailers)
        if has_trailers:
            messages.append(empty(Side.REQUEST, Kind.TRAILERS))
    return messages


def _route(route: Route, mode: BodyMode, kind: Kind, headers: Headers, new_body: Sequence[bytes] | None) -> bytes:
    reply = pb.ProcessingResponse()
    if kind is Kind.TRAILERS:
        # Too late for headers; the metadata still routes where Envoy reads it.
        reply.request_trailers.SetInParent()
    else:
        is_body = kind in (Kind.BODY, Kind.BODY_END)
        common = reply.request_body.response if is_body else reply.request_headers.response
        common.clear_route_cache = True
        to_set = {DESTINATION: route.destination}
        for name, value in route.set_headers.items():
            to_set.setdefault(name.lower(), value)
        to_remove = [name for name in STRIPPED_FROM_CLIENTS if name in headers]
        to_remove.extend(route.remove_headers)
        if new_body is not None and mode is not BodyMode.BUFFERED:
            to_remove.append(_CONTENT_LENGTH)
        _mutate(common.header_mutation, to_set, to_remove)
        if new_body is not None and is_body:
            _replace_body(common, b"".join(new_body), mode)
    lb = reply.dynamic_metadata.fields[LB_NAMESPACE].struct_value.fields
    lb[DESTINATION].string_value = route.destination
    if route.scores is not None:
        scores = lb[DESTINATION_SCORES].struct_value
        scores.SetInParent()
        for address, score in route.scores.items():
            if math.isfinite(score):
                scores.fields[address].number_value = score
    return reply.SerializeToString()


def response_headers(set_headers: Mapping[str, str], remove_content_length: bool) -> bytes:
    if not set_headers and not remove_content_length:
        return empty(Side.RESPONSE, Kind.HEADERS)
    reply = pb.ProcessingResponse()
    to_remove = [_CONTENT_LENGTH] if remove_content_length else []
    _mutate(reply.response_headers.response.header_mutation, set_headers, to_remove)
    return reply.SerializeToString()


def streamed_body(side: Side, parts: Iterable[bytes], end: bool) -> list[bytes]:
    """The replies that carry a body in FULL_DUPLEX_STREAMED; the last one carries the end of the stream if `end`."""
    pieces = list(_pieces(parts))
    if end and not pieces:
        pieces.append(b"")
    replies = []
    for i, piece in enumerate(pieces):
        reply = pb.ProcessingResponse()
        part = reply.request_body if side is Side.REQUEST else reply.response_body
        streamed = part.response.body_mutation.streamed_response
        streamed.body = piece
        streamed.end_of_stream = end and i == len(pieces) - 1
        replies.append(reply.SerializeToString())
    return replies


def replaced_chunk(body: bytes) -> bytes:
    """The reply to a response chunk in STREAMED that puts other bytes, or none, in its place."""
    reply = pb.ProcessingResponse()
    mutation = reply.response_body.response.body_mutation
    if body:
        mutation.body = body
    else:
        mutation.clear_body = True
    return reply.SerializeToString()


def replaced_body(body: bytes, mode: BodyMode) -> bytes:
    """The reply to a whole response body that puts another one in its place; in BUFFERED its length too."""
    reply = pb.ProcessingResponse()
    _replace_body(reply.response_body.response, body, mode)
    return reply.SerializeToString()


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
    _mutate(answer.headers, headers)
    answer.body = rejection.body
    answer.details = rejection.details
    return reply.SerializeToString()


def is_grpc(headers: Headers) -> bool:
    content_type = headers.get("content-type") or ""
    return content_type == "application/grpc" or content_type.startswith(("application/grpc+", "application/grpc;"))


def _mutate(mutation: pb.HeaderMutation, to_set: Mapping[str, str], to_remove: Iterable[str] = ()) -> None:
    """Fill in a mutation. What is set is not removed; a content-length follows from a body and is nobody's to set."""
    if len(to_set) > MAX_SET_HEADERS:
        raise ValueError(f"more than {MAX_SET_HEADERS} headers to set")
    names = set()
    for name, value in to_set.items():
        name = name.lower()
        if name != _CONTENT_LENGTH:
            _set_header(mutation, name, value)
            names.add(name)
    mutation.remove_headers.extend(dict.fromkeys(name for name in map(str.lower, to_remove) if name not in names))


def _set_header(mutation: pb.HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value.encode(errors="replace")
    # Said in full: Envoy's default here is not the one that its API documents.
    option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _replace_body(common: pb.CommonResponse, body: bytes, mode: BodyMode) -> None:
    """Only in BUFFERED does the content-length stay with the message, and must match."""
    common.body_mutation.body = body
    if mode is BodyMode.BUFFERED:
        _set_header(common.header_mutation, _CONTENT_LENGTH, str(len(body)))


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        if len(part) > MAX_PIECE_BYTES:
            for start in range(0, len(part), MAX_PIECE_BYTES):
                yield part[start : start + MAX_PIECE_BYTES]
        elif part:
            yield part
