"""One ext_proc stream: joins the conversation (wire) with the decision (director).

Everything here is synchronous: a message goes in, the replies that are due come out. What happens without a message, a
deadline that passes, is sent through the stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from epp.director import Arrival, Assignment, Director, Refusal
from epp.endings import EndCause
from epp.inference.errors import error_body
from epp.inference.rewrite import ResponseModelRewriter
from epp.scheduling.decision import Denial
from epp.server.deadlines import Deadlines
from epp.server.following import Following
from epp.server.transport import Stream
from epp.server.watching import Watching, WatchOptions
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
        "_broken",
        "_cause",
        "_clock",
        "_conversation",
        "_deadlines",
        "_director",
        "_following",
        "_options",
        "_received_s",
        "_stream",
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
        self._following: Following | None = None  # once the request is routed
        self._broken = False
        self._cause = EndCause.LOST  # an error may swallow the end

    @property
    def finished(self) -> bool:
        return self._conversation.finished

    def receive(self, data: bytes) -> list[bytes]:
        """Take one message. Raises `epp.wire.codec.ProtocolError` if the peer does not speak ext_proc."""
        conversation, following = self._conversation, self._following
        if conversation.finished:
            return []
        if self._received_s is None:
            self._received_s = self._clock()
            self._deadlines.set(self, self._received_s)
        assignment = None if following is None else following.assignment
        started_s = 0.0 if assignment is None else self._clock()
        try:
            step = conversation.receive(data)
            replies = step.replies
            for event in step.events:
                if following is not None and isinstance(event, ResponseBody):  # what comes most
                    following.response_body(event.data)
                    continue
                more = self._on_event(event)
                if more:
                    replies.extend(more)
        except Exception:  # theirs or ours: from here on nothing is known of this exchange
            self._broken = True
            raise
        if assignment is not None and not assignment.ended:
            assignment.response_processing_s += self._clock() - started_s
        return replies

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        """The stream is over: half-closed by the peer, cancelled, or lost with the connection."""
        for event in self._conversation.closed(broken=self._broken or lost):
            if isinstance(event, Ended):
                self._cause = event.cause
        self._deadlines.take_back(self)
        self._end()

    def _end(self) -> None:
        """The request is over; harmless when repeated."""
        if self._following is not None:
            self._following.ended(self._cause)

    def _on_event(self, event: Event) -> list[bytes] | None:
        match event:
            case RequestReady():
                return self._decide(event)
            case ResponseStarted():
                return self._respond(event)
            case BodyTooLarge():
                denial = Denial.too_large(f"the request body is larger than {event.limit_bytes} bytes")
                return self._reject(self._director.refuse(denial, event.headers.last_values))
            case Ended():
                self._deadlines.take_back(self)
                self._cause = event.cause
                if self._following is not None:  # the last reply need not wait for what is made of it
                    self._stream.afterwards(self._end)
        return None

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
        awaited = self._watching.access_log.expect(self._conversation.access_log)
        self._following = Following(
            answer, awaited, self._conversation, self._director, self._watching, self._options.watch, self._clock
        )
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
        answer.body = None  # on its way
        if not replies:  # too late
            self._following.is_unnamed()
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
        return self._conversation.respond({} if self._following is None else self._following.response_started(started))
