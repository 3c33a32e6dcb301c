"""One ext_proc stream, without its I/O: Envoy's messages in; events and replies out.

The transport feeds each message to `receive`, sends the replies in order and hands the events to the owner. The owner
answers `RequestReady` with `route` or `reject`, and `ResponseStarted` with `respond`, at once or later; each gives
replies to send. When the stream ends, however it ends, the transport calls `closed`.

    conversation.receive(message) -> events, replies
    conversation.route(route)     -> replies
    conversation.respond({})      -> replies
    conversation.let_go()         -> whether the rest of the response needs us no more
    conversation.closed()         -> events

What each message means stands in `table`; this file carries it out. While an answer of the owner is due in a direction,
replies to later messages of that direction are held back behind it, so replies are always in Envoy's order.

**How an exchange ends**, by what can be seen of it. `Ended` comes exactly once, and is the last event.

* NATURAL: the last byte of the response (or its trailers) was seen. Where Envoy does not show the rest of the response
  (mode NONE, or trailers and cut bodies in the buffered modes), it ends the stream when it is through: that counts. So
  does its end after a routed request whose response mode is NONE, before any response: Envoy then shows no response at
  all. A client that leaves in this blind spot looks the same.
* UPSTREAM_ERROR: the same, but Envoy made the response itself in place of a server that did not answer: 502, 503 or
  504, without the `x-envoy-upstream-service-time` that Envoy puts on what a server sent.
* REJECTED, EVICTED: we answered the client, before or after the request was routed.
* CLIENT_GONE: the stream ended before any of these, or Envoy answered the client before the request was routed. A
  server that breaks off in mid-response looks the same: Envoy resets its client and says no more.
* LOST: the transport died.

**Letting go.** In STREAMED, Envoy keeps each chunk of a response until we have answered it, so we may end the stream at
any time: what Envoy keeps and what is still to come goes to the client as it is. An owner that has seen enough, and
learns of the end in another way (`epp.wire.access_log`), saves both sides the messages of the rest. It is then the
owner's to say how the exchange ended: there is no `Ended`. In FULL_DUPLEX_STREAMED bytes on their way to us would be
lost, so there the stream is never ended early.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from epp.endings import EndCause
from epp.wire import replies, table
from epp.wire.access_log import watched_as
from epp.wire.beside import Modes
from epp.wire.codec import Message, Reader
from epp.wire.direction import Direction
from epp.wire.events import (
    BodyMode,
    BodyTooLarge,
    Ended,
    Event,
    Headers,
    Rejection,
    RequestReady,
    ResponseBody,
    ResponseStarted,
    Route,
)
from epp.wire.gathering import Gathering
from epp.wire.table import Action, Kind, Side, State


@dataclass(frozen=True, slots=True)
class Limits:
    """What one exchange may hold.

    Attributes:
        max_request_body_bytes: beyond it, `BodyTooLarge`.
        max_headers: beyond it, `ProtocolError`. Envoy itself allows 100 by default.
    """

    max_request_body_bytes: int = 64 * 2**20
    max_headers: int = 1_000


class Step:
    """What one message of Envoy's leads to."""

    __slots__ = ("events", "replies")

    def __init__(self, events: list[Event], replies: list[bytes]) -> None:
        self.events = events
        self.replies = replies


# Statuses that Envoy gives when the server behind it does not answer.
_GATEWAY_ERRORS: Final = (502, 503, 504)
_SERVER_TIME: Final = "x-envoy-upstream-service-time"

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_REQUEST: Final = Side.REQUEST
_RESPONSE: Final = Side.RESPONSE
_START: Final = State.START
_RELAYING: Final = State.RELAYING
_UNSEEN: Final = State.UNSEEN
_DONE: Final = State.DONE
_HEADERS_END: Final = Kind.HEADERS_END
_BODY: Final = Kind.BODY
_BODY_END: Final = Kind.BODY_END
_NATURAL: Final = EndCause.NATURAL
_CLIENT_GONE: Final = EndCause.CLIENT_GONE
_STREAMED: Final = BodyMode.STREAMED
_ECHO: Final = Action.ECHO
_RELAYING_ACTIONS: Final = (_ECHO, Action.PASS_CHUNK)  # after which things are as before

_ACKNOWLEDGED: Final = replies.empty(_RESPONSE, _BODY)


class Conversation:
    """One ext_proc stream: one HTTP request and its response.

    Attributes:
        finished: nothing more will be sent: the transport may end the stream with OK.
    """

    __slots__ = (
        "_access_log",
        "_answered",
        "_by_envoy",
        "_drops_length",
        "_ended",
        "_gathering",
        "_let_go",
        "_modes",
        "_observe",
        "_reader",
        "_ready",
        "_relays",
        "_request",
        "_response",
        "_rewrite",
        "_routed",
        "_speaks_grpc",
        "finished",
    )

    def __init__(self, limits: Limits = Limits()) -> None:
        self._reader = Reader(limits.max_headers)
        self._modes: Modes | None = None  # known with the first message
        self._request = Direction()
        self._response = Direction()

        self._gathering: Gathering | None = Gathering(limits.max_request_body_bytes)  # until the request is routed
        self._speaks_grpc = False  # the client, as its request's headers say
        self._ready: tuple[RequestReady, Kind] | None = None  # waits for a route, which replies to that part

        self._routed = False
        self._observe = True
        self._rewrite: Callable[[bytes, bool], bytes] | None = None
        self._drops_length = False  # of the response: its rewriting may change it
        self._by_envoy = False  # it is Envoy's own, in place of a server's

        self._access_log: str | None = None
        self._answered: EndCause | None = None  # we answered the client ourselves
        self._let_go = False
        self._relays: Action | None = None  # what is done with a chunk, if that needs no further look
        self._ended = False
        self.finished = False

    # --- for the transport -------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Step:
        """Take one serialized `ProcessingRequest`. Once the conversation has finished, messages are ignored.

        Raises:
            ProtocolError: it cannot be read, or cannot come here. End the stream, and call `closed(broken=True)`.
        """
        if self._relays is not None:
            chunk = self._reader.response_chunk(data)
            if chunk is not None:
                return self._relay(chunk)
        step = Step([], [])
        if self.finished:
            return step
        message = self._reader.read(data)
        modes = self._modes
        if modes is None:
            modes = self._modes = message.modes()
            self._access_log = message.beside.access_log
            self._request.follow(table.REQUEST[modes.request])
            self._response.follow(table.RESPONSE[modes.response])
        response = self._response
        if message.side is _REQUEST:
            if self._gathering is not None and not self._routed:
                self._gathering.note(message)
            action = self._request.advance(message.kind)
        else:
            is_first = response.state is _START
            action = response.advance(message.kind)
            if is_first:
                self._begin_response(message, step)
        _PERFORM[action](self, message, step)
        if response.state is _DONE:
            self._end(step.events, self.delivered)
            self.finished = not response.owed
        if modes.observing:
            step.replies.clear()
        elif message.side is not _REQUEST:
            self._look_for_a_short_way()
        return step

    def _relay(self, chunk: bytes) -> Step:
        """What `_echo` and `_pass_chunk` do with a chunk in the middle of a response that nobody changes."""
        reply = replies.streamed_chunk(_RESPONSE, chunk, False) if self._relays is _ECHO else _ACKNOWLEDGED
        events: list[Event] = [ResponseBody(chunk, False)] if self._observe and not self._ended else []
        return Step(events, [reply])

    def _finish(self) -> None:
        self.finished = True
        self._relays = None

    def _look_for_a_short_way(self) -> None:
        """Chunks are what comes most. While nothing but to pass them on is to be done, they skip the table."""
        response = self._response
        self._relays = None
        if response.state is _RELAYING and self._rewrite is None and not (response.owed or self.finished):
            action = response.action_on(_BODY)
            if action in _RELAYING_ACTIONS:
                self._relays = action

    def closed(self, *, broken: bool = False) -> list[Event]:
        """The stream is over. To be called at the end of every stream, whoever ended it; harmless when repeated.

        Args:
            broken: the transport or the protocol failed, so nothing is known. Not for a stream that Envoy reset:
                Envoy half-closes at the end of an exchange and resets soon after, whichever is noticed first.
        """
        self._finish()
        events: list[Event] = []
        if self._let_go:
            return events
        if self._answered is not None:
            cause = self._answered
        elif broken:
            cause = EndCause.LOST
        elif self._rest_is_unseen():
            cause = self.delivered
        else:
            cause = _CLIENT_GONE
        self._end(events, cause)
        return events

    @property
    def request_headers(self) -> Headers:
        """As far as they have come; empty before, and once the request is routed."""
        return Headers({}) if self._gathering is None else self._gathering.headers

    # --- for the owner -----------------------------------------------------------------------------------------------

    def route(self, route: Route) -> list[bytes]:
        """Answer `RequestReady`. Nothing to send if it comes too late, for Envoy has answered or gone meanwhile.

        A new body is put in place only where the old one was shown whole.

        Raises:
            RuntimeError: no request waits for a route.
        """
        if self._ended or self.finished:
            return []
        if self._modes is None or self._ready is None:
            raise RuntimeError("no request waits for a route")
        (request, kind), self._ready = self._ready, None
        self._routed = True
        self._speaks_grpc = replies.is_grpc(request.headers)
        self._gathering = None
        self._observe = route.observe_response
        if self._observing:
            return []
        self._rewrite = route.rewrite_response
        messages = replies.route(route, self._modes.request, kind, request)
        if route.watched_as is not None:
            messages[0] += watched_as(route.watched_as)
        return self._request.settle(messages)

    def reject(self, rejection: Rejection) -> list[bytes]:
        """Answer the client ourselves: in place of a route, or at any time before the end to break the exchange off.

        Once the response has begun to flow, the client sees it cut off. Nothing to send if there is nobody left to
        answer, or Envoy takes no answers.
        """
        if self._modes is None or self._ended or self.finished or self._observing:
            return []
        self._answered = EndCause.EVICTED if self._routed else EndCause.REJECTED
        self._finish()
        self._ready = None
        self._request.drop()
        self._response.drop()
        return [replies.immediate(rejection, self._speaks_grpc or replies.is_grpc(self.request_headers))]

    def respond(self, set_headers: Mapping[str, str]) -> list[bytes]:
        """Answer `ResponseStarted` with response headers to set. Nothing to send if it comes too late.

        Raises:
            RuntimeError: no response waits for it.
        """
        if self.finished or self._observing:
            return []
        if not self._response.owed:
            raise RuntimeError("no response waits to be answered")
        self.finished = self._response.state is _DONE
        messages = self._response.settle([replies.response_headers(set_headers, self._drops_length)])
        self._look_for_a_short_way()
        return messages

    def let_go(self) -> bool:
        """End the stream before the response ends, if that is safe and something of the response is left.

        True: the conversation has finished, and `closed` will tell nothing. False: nothing has changed.
        """
        request, response = self._request, self._response
        safe = (
            self._mode(_RESPONSE) is _STREAMED
            and self._rewrite is None
            and not (self._observing or response.owed or request.owed)
            and request.state in (_DONE, _UNSEEN)
        )
        self._let_go = safe and response.state is _RELAYING and not (self._ended or self.finished)
        if self._let_go:
            self._finish()
        return self._let_go

    @property
    def access_log(self) -> str | None:
        """What Envoy promised of its access log with its first message; see `epp.wire.names.ACCESS_LOG`."""
        return self._access_log

    @property
    def delivered(self) -> EndCause:
        """How a response counts that the client gets whole: NATURAL, or UPSTREAM_ERROR if Envoy made it itself."""
        return EndCause.UPSTREAM_ERROR if self._by_envoy else _NATURAL

    # --- the actions of the table ------------------------------------------------------------------------------------

    def _wait(self, message: Message, step: Step) -> None:
        pass

    def _acknowledge(self, message: Message, step: Step) -> None:
        self._send_one(message.side, replies.empty(message.side, message.kind), step)

    def _keep(self, message: Message, step: Step) -> None:
        gathering = self._may_keep(message, step)
        if gathering is not None:
            gathering.add(message.body)

    def _hand_over(self, message: Message, step: Step) -> None:
        gathering = self._may_keep(message, step)
        if gathering is not None:
            gathering.add(message.body)
            request = gathering.ready(message.kind, self._mode(_REQUEST))
            self._ready = request, message.kind
            self._await_decision(request, step)

    def _start_response(self, message: Message, step: Step) -> None:
        headers, status = message.headers or Headers({}), message.status()
        self._by_envoy = status in _GATEWAY_ERRORS and _SERVER_TIME not in headers
        end = message.kind is _HEADERS_END
        # In BUFFERED the reply to the body sets the length anew.
        rewritten = self._rewrite is not None and self._mode(_RESPONSE) not in (BodyMode.BUFFERED, BodyMode.NONE)
        self._drops_length = rewritten and not end and "content-length" in headers
        if self._observe:
            self._response.owed = not self._observing
            self._emit(ResponseStarted(status, headers, message.beside.served_address, end), step)
        else:
            self._send(_RESPONSE, [replies.response_headers({}, self._drops_length)], step)

    def _echo(self, message: Message, step: Step) -> None:
        data, end = message.body, message.kind is _BODY_END
        if message.side is _RESPONSE:
            data = self._rewritten(data, end)
            self._tell(message, step)
        elif self._request.owed and self._may_keep(message, step) is None:
            return
        if 0 < len(data) <= replies.MAX_PIECE_BYTES:
            self._send_one(message.side, replies.streamed_chunk(message.side, data, end), step)
        else:
            self._send(message.side, replies.streamed_body(message.side, [data], end), step)

    def _flush(self, message: Message, step: Step) -> None:
        rest = self._rewritten(b"", True)
        self._send(message.side, replies.streamed_body(message.side, [rest], end=False), step)
        self._acknowledge(message, step)

    def _pass_chunk(self, message: Message, step: Step) -> None:
        data = self._rewritten(message.body, message.kind is _BODY_END)
        if data == message.body:
            self._acknowledge(message, step)
        else:
            self._send(message.side, [replies.replaced_chunk(data)], step)
        self._tell(message, step)

    def _pass_cut(self, message: Message, step: Step) -> None:
        self._acknowledge(message, step)
        self._tell(message, step)

    def _pass_whole(self, message: Message, step: Step) -> None:
        data = self._rewritten(message.body, True)
        if data == message.body:
            self._acknowledge(message, step)
        else:
            self._send(message.side, [replies.replaced_body(data, self._mode(message.side))], step)
        self._tell(message, step)

    # --- what the actions share --------------------------------------------------------------------------------------

    @property
    def _observing(self) -> bool:
        return self._modes is not None and self._modes.observing

    def _begin_response(self, message: Message, step: Step) -> None:
        """A response's first part is here: its headers, or what follows them if Envoy does not show those."""
        if message.headers is None:
            self._rewrite = None  # the content-length among them could not be changed
        if self._request.state is not _START and not self._routed:
            # Envoy answers the client itself, say for a request that took too long to come. There is nothing left to
            # decide, but the response still runs through us.
            self._ready = None
            self._request.drop()
            self._observe = False
            self._end(step.events, _CLIENT_GONE)

    def _mode(self, side: Side) -> BodyMode:
        assert self._modes is not None  # known before any action
        return self._modes.request if side is _REQUEST else self._modes.response

    def _may_keep(self, message: Message, step: Step) -> Gathering | None:
        """Count bytes that are to be kept until the decision. Once they are too many, that is told and none is kept."""
        gathering = self._gathering
        if gathering is None or gathering.overflowed:
            return None
        if gathering.count(len(message.body)):
            return gathering
        self._ready = None
        self._request.drop()
        self._await_decision(gathering.too_large(), step)
        return None

    def _await_decision(self, event: RequestReady | BodyTooLarge, step: Step) -> None:
        if self._observing:
            self._routed = True  # Envoy does not wait
        else:
            self._request.owed = True
        self._emit(event, step)

    def _rewritten(self, data: bytes, end: bool) -> bytes:
        return data if self._rewrite is None else self._rewrite(data, end)

    def _tell(self, message: Message, step: Step) -> None:
        if self._observe:
            self._emit(ResponseBody(message.body, message.kind is _BODY_END), step)

    def _send(self, side: Side, messages: list[bytes], step: Step) -> None:
        (self._request if side is _REQUEST else self._response).send(messages, step.replies)

    def _send_one(self, side: Side, message: bytes, step: Step) -> None:
        (self._request if side is _REQUEST else self._response).send_one(message, step.replies)

    def _emit(self, event: Event, step: Step) -> None:
        if not self._ended:
            step.events.append(event)

    def _end(self, events: list[Event], cause: EndCause) -> None:
        if not self._ended:
            self._ended = True
            events.append(Ended(cause))

    def _rest_is_unseen(self) -> bool:
        """Envoy has shown all that its modes show, so the end of the stream says that the exchange is through."""
        if self._response.state is _UNSEEN:
            return not self._response.owed
        request_through = self._routed and self._request.state in (_UNSEEN, _DONE)
        return request_through and self._response.state is _START and self._mode(_RESPONSE) is BodyMode.NONE


_PERFORM: Final[Mapping[Action, Callable[[Conversation, Message, Step], None]]] = {
    Action.WAIT: Conversation._wait,
    Action.KEEP: Conversation._keep,
    Action.READY: Conversation._hand_over,
    Action.STARTED: Conversation._start_response,
    Action.ACK: Conversation._acknowledge,
    Action.ECHO: Conversation._echo,
    Action.FLUSH: Conversation._flush,
    Action.PASS_CHUNK: Conversation._pass_chunk,
    Action.PASS_CUT: Conversation._pass_cut,
    Action.PASS_WHOLE: Conversation._pass_whole,
    Action.IGNORE: Conversation._wait,
}
