"""What the conversation tells its owner (events), and what its owner tells it (routes and rejections).

Nobody changes one once it is made. Those of which each request makes one, or each chunk, are not frozen all the same,
since that would make them several times as dear.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from epp.endings import EndCause


class BodyMode(Enum):
    """Envoy's body processing modes, with Envoy's numbers (`ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class Headers:
    """Headers of one message: names in lower case, and of each the last value. That is all that is ever asked of them,
    for headers are never sent back."""

    __slots__ = ("last_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self.last_values = values

    def get(self, name: str) -> str | None:
        return self.last_values.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self.last_values


# --- events: from the conversation to its owner ------------------------------------------------------------------


@dataclass(slots=True)
class RequestReady:
    """All that will be known of the request before an answer is due. Answer with `route` or `reject`.

    Attributes:
        body: the whole body; `None` when the mode shows none (STREAMED, NONE, or a request without a body).
            In BUFFERED_PARTIAL it may be cut: then `body_complete` is False.
        subset: the addresses that the proxy limits the choice to; `None` when it sets no limit; empty when it allows
            none. Entries are `ip` or `ip:port`, unvalidated.
    """

    headers: Headers
    body: bytes | None
    body_complete: bool
    has_body: bool
    subset: tuple[str, ...] | None


@dataclass(slots=True)
class ResponseStarted:
    """Response headers came; answer with `respond`. `status` is `:status`; `None` if it is missing or no number.

    Attributes:
        served_address: the server that really answered, by Envoy's word; `None` if Envoy does not say.
        end_of_stream: no body follows.
    """

    status: int | None
    headers: Headers
    served_address: str | None
    end_of_stream: bool


@dataclass(slots=True)
class ResponseBody:
    """Bytes of the response as the model server sent them. They have been answered already."""

    data: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class BodyTooLarge:
    """The request body passed the cap. Answer with `reject`; nothing more of it is kept."""

    headers: Headers
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The exchange is over. Emitted exactly once, whatever happened."""

    cause: EndCause


Event = RequestReady | BodyTooLarge | ResponseStarted | ResponseBody | Ended


# --- answers: from the owner to the conversation --------------------------------------------------------------------


@dataclass(slots=True)
class Route:
    """Send the request on.

    Attributes:
        destination: `ip:port[,ip:port…]`; goes into the destination header and the `envoy.lb` metadata, identical.
        set_headers: request headers to set; an entry overwrites. Never the client's own headers echoed.
        remove_headers: request headers to strip, beyond those that the conversation always strips.
        body: a replaced body, as parts in order; `None` leaves it as it came, byte for byte. Counts only where
            `RequestReady` brought the whole body: what was not seen cannot be replaced.
        scores: `ip:port` to score, put into the metadata when given.
        rewrite_response: maps each piece of the response body (and whether it is the last) to what the client gets; an
            empty result holds the piece back. `None`: bytes pass untouched. Applied only in modes that can replace.
            Trailers end a response without a last piece; in STREAMED what is then still held back is lost.
        observe_response: the owner wants response events; without, response messages are answered and not looked at.
        watched_as: what Envoy's access log is to call the request; `None`: it need not name it.
    """

    destination: str
    set_headers: Mapping[str, str] = field(default_factory=dict)
    remove_headers: Sequence[str] = ()
    body: Sequence[bytes] | None = None
    scores: Mapping[str, float] | None = None
    rewrite_response: Callable[[bytes, bool], bytes] | None = None
    observe_response: bool = True
    watched_as: str | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Answer the client ourselves.

    Attributes:
        status: HTTP status.
        body: JSON, already in the shape that the client's API uses.
        headers: e.g. the reason header and Retry-After; content-type is set to JSON unless given. A gRPC client gets
            a gRPC status besides, and keeps its content-type.
        details: a short machine-readable cause for Envoy's access log.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    details: str = ""
