"""HTTP messages, and how Envoy shows them to a picker in each processing mode."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

Pairs = Sequence[tuple[str, str]]


class Side(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"


class Kind(StrEnum):
    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


class BodyMode(IntEnum):
    """With Envoy's numbers (`ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy shows of an exchange.

    Attributes:
        trailers: both sides' trailers are shown. Envoy demands it for FULL_DUPLEX_STREAMED.
        response_headers: False is Envoy's `response_header_mode: SKIP`.
    """

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    trailers: bool = True
    response_headers: bool = True

    def body_of(self, side: Side) -> BodyMode:
        return self.request if side is Side.REQUEST else self.response


# As gateways configure Envoy.
FULL_DUPLEX_BOTH_WAYS = Modes()


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """
    Attributes:
        chunks: the body as it comes; `None` when the message ends with its headers.
        end_rides_on_data: as HTTP/2 does; otherwise an empty last piece ends the body, as HTTP/1.1 does.
        buffer_bytes: in BUFFERED_PARTIAL, what fits into Envoy's buffer; `None`: everything.
    """

    headers: Pairs
    chunks: Sequence[bytes] | None = None
    trailers: Pairs | None = None
    end_rides_on_data: bool = False
    buffer_bytes: int | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks or ())


@dataclass(frozen=True, slots=True)
class Part:
    """One ext_proc message's worth of an HTTP message."""

    kind: Kind
    end: bool = False
    body: bytes = b""
    pairs: Pairs = ()


def parts_of(message: HttpMessage, side: Side, modes: Modes) -> list[Part]:
    """What Envoy sends for a message, in order."""
    trailers = [Part(Kind.TRAILERS, pairs=message.trailers)] if message.trailers is not None and modes.trailers else []
    ends = message.trailers is None
    headers = [Part(Kind.HEADERS, end=message.chunks is None and ends, pairs=message.headers)]
    if side is Side.RESPONSE and not modes.response_headers:
        headers = []
    body = [] if message.chunks is None else list(_body_parts(message, modes.body_of(side), ends))
    return headers + body + trailers


def _body_parts(message: HttpMessage, mode: BodyMode, ends: bool) -> list[Part]:
    whole = message.body
    match mode:
        case BodyMode.NONE:
            return []
        case BodyMode.BUFFERED | BodyMode.BUFFERED_PARTIAL:
            limit = message.buffer_bytes if mode is BodyMode.BUFFERED_PARTIAL else None
            if limit is not None and limit < len(whole):
                return [Part(Kind.BODY, body=whole[:limit])]
            return [Part(Kind.BODY, ends, whole)] if whole or ends else []
    chunks = [chunk for chunk in message.chunks or () if chunk]
    parts = [Part(Kind.BODY, body=chunk) for chunk in chunks]
    if not ends:
        return parts
    if message.end_rides_on_data and parts:
        return [*parts[:-1], Part(Kind.BODY, True, chunks[-1])]
    return [*parts, Part(Kind.BODY, True)]
