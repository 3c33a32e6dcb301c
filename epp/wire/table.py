"""The ext_proc conversation as a table: what each message of Envoy's means, in each mode, in each state.

An HTTP exchange has two directions, request and response, and Envoy processes each in a mode of its own. A direction is
a small state machine fed with the parts of one HTTP message in order: headers, body, trailers. A row says what we do
with a part and what state follows. What has no row cannot come from a sane Envoy and is a protocol error.

What shapes the rows, mode by mode:

* FULL_DUPLEX_STREAMED: Envoy keeps no copy of the body and waits for nothing. We may answer as late as we like, but
  headers first, and must send every byte back; a byte that we withhold is lost.
* BUFFERED: Envoy holds the headers until they are answered, then the whole body until that is answered. A mutation of
  the headers still counts in the answer to the body. BUFFERED_PARTIAL is the same up to Envoy's buffer limit: what does
  not fit passes by.
* STREAMED: headers must be answered before the body comes; then each piece of the body gets its own answer.
* NONE: no body is shown.

Trailers, when they are shown, end the direction; then no part before them carries the end of the stream.

Envoy may be told not to show the response's headers; outside of FULL_DUPLEX_STREAMED its body or trailers then come
first. Such a response is answered, and nothing is learnt from it but its end.

The table knows nothing of *when* an answer is given. While the owner has not yet answered (`route`, `respond`), replies
to later parts of that direction are held back in order; see `conversation`.

Run as a program it prints itself as Markdown: `python -m epp.wire.table`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from epp.wire.events import BodyMode


class Side(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"


class Kind(StrEnum):
    """A part of an HTTP message. `…_END`: Envoy's `end_of_stream` is set, nothing follows."""

    HEADERS = "headers"
    HEADERS_END = "headers, end"
    TUNNEL = "headers of a tunnel"  # an upgrade or CONNECT: the "body" is bytes that flow once the tunnel stands
    BODY = "body"
    BODY_END = "body, end"
    TRAILERS = "trailers"


class State(StrEnum):
    START = "start"
    COLLECTING = "collecting"  # the body is on its way to us, and nothing is decided before it is here
    RELAYING = "relaying"  # parts are answered as they come
    UNSEEN = "unseen"  # the rest of the body passes by; trailers may yet be shown
    DONE = "done"


class Action(StrEnum):
    WAIT = "no reply yet"
    KEEP = "keep the bytes, no reply yet"
    READY = "hand the request to the owner; `route` replies"
    STARTED = "hand the headers to the owner; `respond` replies"
    ACK = "empty reply"
    ECHO = "send the bytes back (a response rewritten if asked)"
    FLUSH = "what the rewriter holds back, then the empty reply"
    PASS_CHUNK = "empty reply (or the rewritten bytes)"
    PASS_CUT = "empty reply: what was cut off would follow another body"
    PASS_WHOLE = "empty reply (or the rewritten body and its length)"
    IGNORE = "no reply, ever"


Rows = Mapping[tuple[State, Kind], tuple[Action, State]]

_REQUEST_FULL_DUPLEX: Rows = {
    (State.START, Kind.HEADERS): (Action.WAIT, State.COLLECTING),
    (State.START, Kind.HEADERS_END): (Action.READY, State.DONE),
    (State.START, Kind.TUNNEL): (Action.READY, State.RELAYING),
    (State.COLLECTING, Kind.BODY): (Action.KEEP, State.COLLECTING),
    (State.COLLECTING, Kind.BODY_END): (Action.READY, State.DONE),
    (State.COLLECTING, Kind.TRAILERS): (Action.READY, State.DONE),
    (State.RELAYING, Kind.BODY): (Action.ECHO, State.RELAYING),
    (State.RELAYING, Kind.BODY_END): (Action.ECHO, State.DONE),
    (State.RELAYING, Kind.TRAILERS): (Action.ACK, State.DONE),
    # Envoy is known to deliver the last piece of a large body twice.
    (State.DONE, Kind.BODY): (Action.IGNORE, State.DONE),
    (State.DONE, Kind.BODY_END): (Action.IGNORE, State.DONE),
    (State.DONE, Kind.TRAILERS): (Action.IGNORE, State.DONE),
}

_REQUEST_BUFFERED: Rows = {
    (State.START, Kind.HEADERS): (Action.ACK, State.COLLECTING),
    (State.START, Kind.HEADERS_END): (Action.READY, State.DONE),
    (State.START, Kind.TUNNEL): (Action.READY, State.UNSEEN),
    (State.COLLECTING, Kind.BODY): (Action.READY, State.UNSEEN),
    (State.COLLECTING, Kind.BODY_END): (Action.READY, State.DONE),
    (State.COLLECTING, Kind.TRAILERS): (Action.READY, State.DONE),
    (State.UNSEEN, Kind.BODY): (Action.ACK, State.UNSEEN),
    (State.UNSEEN, Kind.BODY_END): (Action.ACK, State.DONE),
    (State.UNSEEN, Kind.TRAILERS): (Action.ACK, State.DONE),
    # Outside of FULL_DUPLEX_STREAMED each body message waits for its own answer, a repeated one too.
    (State.DONE, Kind.BODY_END): (Action.ACK, State.DONE),
}

_REQUEST_STREAMED: Rows = {
    (State.START, Kind.HEADERS): (Action.READY, State.RELAYING),
    (State.START, Kind.HEADERS_END): (Action.READY, State.DONE),
    (State.START, Kind.TUNNEL): (Action.READY, State.RELAYING),
    (State.RELAYING, Kind.BODY): (Action.ACK, State.RELAYING),
    (State.RELAYING, Kind.BODY_END): (Action.ACK, State.DONE),
    (State.RELAYING, Kind.TRAILERS): (Action.ACK, State.DONE),
    (State.DONE, Kind.BODY_END): (Action.ACK, State.DONE),
}

_REQUEST_NONE: Rows = {
    (State.START, Kind.HEADERS): (Action.READY, State.UNSEEN),
    (State.START, Kind.HEADERS_END): (Action.READY, State.DONE),
    (State.START, Kind.TUNNEL): (Action.READY, State.UNSEEN),
    (State.UNSEEN, Kind.TRAILERS): (Action.ACK, State.DONE),
}

_RESPONSE_FULL_DUPLEX: Rows = {
    (State.START, Kind.HEADERS): (Action.STARTED, State.RELAYING),
    (State.START, Kind.HEADERS_END): (Action.STARTED, State.DONE),
    (State.RELAYING, Kind.BODY): (Action.ECHO, State.RELAYING),
    (State.RELAYING, Kind.BODY_END): (Action.ECHO, State.DONE),
    (State.RELAYING, Kind.TRAILERS): (Action.FLUSH, State.DONE),
    (State.DONE, Kind.BODY): (Action.IGNORE, State.DONE),
    (State.DONE, Kind.BODY_END): (Action.IGNORE, State.DONE),
    (State.DONE, Kind.TRAILERS): (Action.IGNORE, State.DONE),
}

_RESPONSE_BUFFERED: Rows = {
    (State.START, Kind.HEADERS): (Action.STARTED, State.RELAYING),
    (State.START, Kind.HEADERS_END): (Action.STARTED, State.DONE),
    (State.START, Kind.BODY): (Action.PASS_WHOLE, State.UNSEEN),
    (State.START, Kind.BODY_END): (Action.PASS_WHOLE, State.DONE),
    (State.START, Kind.TRAILERS): (Action.ACK, State.DONE),
    (State.RELAYING, Kind.BODY): (Action.PASS_WHOLE, State.UNSEEN),
    (State.RELAYING, Kind.BODY_END): (Action.PASS_WHOLE, State.DONE),
    (State.RELAYING, Kind.TRAILERS): (Action.ACK, State.DONE),
    (State.UNSEEN, Kind.TRAILERS): (Action.ACK, State.DONE),
}

_RESPONSE_STREAMED: Rows = {
    (State.START, Kind.HEADERS): (Action.STARTED, State.RELAYING),
    (State.START, Kind.HEADERS_END): (Action.STARTED, State.DONE),
    (State.START, Kind.BODY): (Action.PASS_CHUNK, State.RELAYING),
    (State.START, Kind.BODY_END): (Action.PASS_CHUNK, State.DONE),
    (State.START, Kind.TRAILERS): (Action.ACK, State.DONE),
    (State.RELAYING, Kind.BODY): (Action.PASS_CHUNK, State.RELAYING),
    (State.RELAYING, Kind.BODY_END): (Action.PASS_CHUNK, State.DONE),
    (State.RELAYING, Kind.TRAILERS): (Action.ACK, State.DONE),
}

_RESPONSE_NONE: Rows = {
    (State.START, Kind.HEADERS): (Action.STARTED, State.UNSEEN),
    (State.START, Kind.HEADERS_END): (Action.STARTED, State.DONE),
    (State.START, Kind.TRAILERS): (Action.ACK, State.DONE),
    (State.UNSEEN, Kind.TRAILERS): (Action.ACK, State.DONE),
}

REQUEST: Mapping[BodyMode, Rows] = {
    BodyMode.FULL_DUPLEX_STREAMED: _REQUEST_FULL_DUPLEX,
    BodyMode.BUFFERED: _REQUEST_BUFFERED,
    BodyMode.BUFFERED_PARTIAL: _REQUEST_BUFFERED,
    BodyMode.STREAMED: _REQUEST_STREAMED,
    BodyMode.NONE: _REQUEST_NONE,
}

RESPONSE: Mapping[BodyMode, Rows] = {
    BodyMode.FULL_DUPLEX_STREAMED: _RESPONSE_FULL_DUPLEX,
    BodyMode.BUFFERED: _RESPONSE_BUFFERED,
    BodyMode.BUFFERED_PARTIAL: {
        **_RESPONSE_BUFFERED,
        (State.START, Kind.BODY): (Action.PASS_CUT, State.UNSEEN),
        (State.RELAYING, Kind.BODY): (Action.PASS_CUT, State.UNSEEN),
    },
    BodyMode.STREAMED: _RESPONSE_STREAMED,
    BodyMode.NONE: _RESPONSE_NONE,
}


def as_markdown() -> str:
    """The whole table, for the documentation."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for side, tables in ((Side.REQUEST, REQUEST), (Side.RESPONSE, RESPONSE)):
        for mode, rows in tables.items():
            yield f"### {side.value.capitalize()}, {mode.name}\n"
            yield "| state | message | what we do | next state |"
            yield "|---|---|---|---|"
            for (state, kind), (action, following) in rows.items():
                yield f"| {state} | {kind} | {action} | {following} |"
            yield ""


if __name__ == "__main__":
    print(as_markdown())
