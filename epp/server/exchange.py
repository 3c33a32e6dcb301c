"""One ext_proc stream: joins the conversation (wire) with the decision (director).

Everything here is synchronous: a message goes in, the replies that are due come out. What happens without a message, a
deadline that passes, is sent through the stream.

A stream may be over before its request is. A response is let go of as soon as enough is known of it, where Envoy's
modes allow it and its access log tells us the end; and where a stream ends in a way that can mean two things, a client
that left or a server that broke off, the log is asked which it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from epp.director import Arrival, Assignment, Director, Refusal
from epp.endings import EndCause
from epp.inference.errors import error_body
from epp.inference.request import Usage
from epp.inference.rewrite import ResponseModelRewriter
from epp.scheduling.decision import Denial
from epp.server.access_log.awaiting import Awaited
from epp.server.access_log.ending import Ending
from epp.server.deadlines import Deadlines
from epp.server.transport import Stream
from epp.server.watching import PACE_EVENTS, ResponseWatch, Watching, WatchOptions
from epp.wire.conversation import Conversation, Limits
from epp.wire.events import (
    BodyTooLarge,
    Ended,
    Event,
    Rejection,
    RequestReady,
    ResponseBody,
    ResponseStarted,
    Route,
)
from epp.wire.names import DROPPED_REASON


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """
    Attributes:
        limits: of the conversation.
        watch: of the response.
    """

    limits: Limits
    watch: WatchOptions = field(default_factory=WatchOptions)


class Exchange:
    """The owner of one conversation. Lives as long as its stream."""

    __slots__ = (
        "_assignment",
        "_awaited",
        "_broken",
        "_clock",
        "_conversation",
        "_deadlines",
        "_director",
        "_may_let_go",
        "_options",
        "_received_s",
        "_stream",
        "_watch",
        "_watching",
    )

    def __init__(
        self,
        stream: Stream,
        director: Director,
        options: ExchangeOptions,
        watching: Watching,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
    ) -> None:
        """`deadlines`: for the time from a request's headers to the end of its body. Envoy enforces none of its own in
        FULL_DUPLEX_STREAMED."""
        self._stream = stream
        self._director = director
        self._options = options
        self._watching = watching
        self._clock = clock
        self._deadlines = deadlines
        self._conversation = Conversation(options.limits)
        self._received_s: float | None = None
        self._assignment: Assignment | None = None
        self._watch: ResponseWatch | None = None
        self._awaited: Awaited | None = None  # Envoy's record of the request, if it promises one
        self._may_let_go = False
        self._broken = False

    @property
    def finished(self) -> bool:
        return self._conversation.finished

    def receive(self, data: bytes) -> list[bytes]:
        """Take one message. Raises `epp.wire.codec.ProtocolError` if the peer does not speak ext_proc."""
        if self.finished:
            return []
        if self._received_s is None:
            self._received_s = self._clock()
            self._deadlines.set(self, self._received_s)
        assignment = self._assignment
        started_s = 0.0 if assignment is None else self._clock()
        try:
            step = self._conversation.receive(data)
            replies = step.replies
            for event in step.events:
                if assignment is not None and isinstance(event, Ended):
                    assignment.response_processing_s += self._clock() - started_s
                replies.extend(self._on_event(event))
        except Exception:  # theirs or ours: from here on nothing is known of this exchange
            self._broken = True
            raise
        if assignment is not None and not assignment.ended:
            assignment.response_processing_s += self._clock() - started_s
        return replies

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        """The stream is over: half-closed by the peer, cancelled, or lost with the connection."""
        for event in self._conversation.closed(broken=self._broken or lost):
            self._on_event(event)
        self._deadlines.take_back(self)
        if self._assignment is not None:  # an error may have swallowed the end; otherwise this changes nothing
            self._director.end(self._assignment, EndCause.LOST, Usage())
        if self._awaited is not None:
            self._awaited.forget()

    def _on_event(self, event: Event) -> list[bytes]:
        match event:
            case RequestReady():
                return self._decide(event)
            case ResponseStarted():
                return self._respond(event)
            case ResponseBody():
                self._observe(event)
            case BodyTooLarge():
                denial = Denial.too_large(f"the request body is larger than {event.limit_bytes} bytes")
                return self._reject(self._director.refuse(denial, event.headers.last_values))
            case Ended():
                self._end(event.cause)
        return []

    # --- request ------------------------------------------------------------------------------------------------

    def _decide(self, ready: RequestReady) -> list[bytes]:
        self._deadlines.take_back(self)
        answer = self._director.decide(
            Arrival(
                headers=ready.headers.last_values,
                body=ready.body,
                body_complete=ready.body_complete,
                has_body=ready.has_body,
                subset=ready.subset,
                received_s=self._received_s if self._received_s is not None else self._clock(),
            )
        )
        if isinstance(answer, Refusal):
            return self._reject(answer)
        self._assignment = answer
        awaited = self._watching.access_log.expect(self._conversation.access_log)
        replies = self._conversation.route(
            Route(
                destination=answer.decision.destination,
                set_headers=answer.cycle.set_headers,
                body=answer.body,
                scores=self._director.scores(answer),
                rewrite_response=self._response_rewriter(answer),
                watched_as=None if awaited is None else awaited.name,
            )
        )
        if awaited is not None and not replies:  # too late: Envoy will not know the name
            awaited.forget()
        else:
            self._awaited = awaited
        return replies

    def _response_rewriter(self, assignment: Assignment) -> Callable[[bytes, bool], bytes] | None:
        """Give the client its own model name back, if the request went out under another one."""
        request = assignment.request
        if assignment.body is None or request.model is None or request.target_model is None:
            return None
        rewriter: ResponseModelRewriter | None = None

        def rewrite(data: bytes, last: bool) -> bytes:
            nonlocal rewriter
            if rewriter is None:  # only now are the response's headers known
                rewriter = ResponseModelRewriter(
                    str(request.target_model), str(request.model), event_stream=assignment.streamed
                )
            return rewriter.feed(data, last)

        return rewrite

    def _reject(self, refusal: Refusal) -> list[bytes]:
        self._deadlines.take_back(self)
        denial = refusal.denial
        headers = {DROPPED_REASON: denial.reason}
        if denial.retry_after_s is not None:
            headers["retry-after"] = str(denial.retry_after_s)
        return self._conversation.reject(
            Rejection(
                status=denial.status,
                body=error_body(refusal.error_style, denial.status, denial.code, denial.message),
                headers=headers,
                details=denial.reason.replace("-", "_"),
            )
        )

    def expired(self) -> None:
        """The deadline of the request has passed."""
        denial = Denial.too_slow(f"the request body did not arrive within {self._deadlines.after_s:g} s")
        headers = self._conversation.request_headers.last_values
        self._stream.send(self._reject(self._director.refuse(denial, headers)))
        self._stream.finish()

    # --- response -----------------------------------------------------------------------------------------------

    def _respond(self, started: ResponseStarted) -> list[bytes]:
        if self._assignment is None:
            return self._conversation.respond({})
        added = self._director.response_started(
            self._assignment, started.status, started.headers.last_values, started.served_address
        )
        self._watch = self._start_watching(self._assignment, started)
        return self._conversation.respond(added)

    def _start_watching(self, assignment: Assignment, started: ResponseStarted) -> ResponseWatch:
        watching, streamed = self._watching, assignment.streamed
        to_the_end = self._director.observes_chunks or watching.to_the_end()
        # JSON comes in few chunks, however many tokens it is, and its usage is read from them.
        self._may_let_go = streamed and self._awaited is not None and not to_the_end
        pace_events: int | None = PACE_EVENTS
        if to_the_end:
            pace_events = None
        elif self._may_let_go and watching.access_log.relied_on and not watching.paces.take():
            pace_events = 0
        encoding = started.headers.get("content-encoding") or "identity"
        return ResponseWatch(
            assignment.request.api,
            self._options.watch,
            streamed=streamed,
            readable_events=streamed and encoding.strip().lower() == "identity",
            pace_events=pace_events,
        )

    def _observe(self, body: ResponseBody) -> None:
        assignment, watch, data = self._assignment, self._watch, body.data
        if assignment is None or watch is None or not data:
            return
        if watch.looking:
            if watch.feed(data, self._clock()):
                self._director.first_token(assignment)
            self._director.response_body(assignment, data)
        else:
            watch.feed(data, 0.0)
        if self._may_let_go and not watch.looking and self._watching.access_log.relied_on:
            self._let_go(assignment, watch)

    def _let_go(self, assignment: Assignment, watch: ResponseWatch) -> None:
        """Enough is known of the response; its end will be in its record. If Envoy's modes do not allow it, they never
        will."""
        self._may_let_go = False
        if self._awaited is None or not self._conversation.let_go():
            return
        awaited, self._awaited, self._assignment = self._awaited, None, None
        self._director.let_go(assignment)
        self._watching.observer.response_let_go()
        awaited.let_go(self._ending(assignment, watch, EndCause.LOST, watch.usage()))

    def _end(self, cause: EndCause) -> None:
        self._deadlines.take_back(self)
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return
        watch, usage = self._watch, Usage()
        try:
            if watch is not None:
                usage = watch.usage()
        finally:  # whatever a response may hold, its reservation ends with it
            awaited, self._awaited = self._awaited, None
            ending = self._ending(assignment, watch, cause, usage, seen_s=self._clock())
            if awaited is None:
                ending(None)
            elif cause is EndCause.CLIENT_GONE and self._watching.access_log.relied_on:
                awaited.over(ending)
            else:
                ending(None)
                if cause is EndCause.LOST:
                    awaited.forget()
                else:
                    awaited.over()

    def _ending(
        self,
        assignment: Assignment,
        watch: ResponseWatch | None,
        otherwise: EndCause,
        usage: Usage,
        seen_s: float | None = None,
    ) -> Ending:
        return Ending(
            self._director,
            assignment,
            self._clock,
            delivered=self._conversation.delivered,
            otherwise=otherwise,
            usage=usage,
            response_bytes=0 if watch is None else watch.response_bytes,
            token_events=0 if watch is None else watch.token_events,
            counted_s=None if watch is None else watch.counted_s,
            seen_s=seen_s,
        )
