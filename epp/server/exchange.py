"""One ext_proc stream: joins the conversation (wire) with the decision (director).

Everything here is synchronous: a message goes in, the replies that are due come out. What happens without a message, a
deadline that passes, is sent through the stream.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from epp.director import Arrival, Assignment, Director, Refusal
from epp.endings import EndCause
from epp.inference.errors import error_body
from epp.inference.request import Usage
from epp.inference.rewrite import ResponseModelRewriter
from epp.inference.usage import merge_sse_usage, usage_from_ends, usage_from_json
from epp.scheduling.decision import Denial
from epp.server.first_token import FirstToken
from epp.server.transport import Stream
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
from epp.wire.window import BodyWindow


class Timer(Protocol):
    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """
    Attributes:
        limits: of the conversation.
        request_timeout_s: from the headers of a request to the end of its body. Envoy enforces none of its own in
            FULL_DUPLEX_STREAMED.
        head_bytes: how much of a response's start is kept to read usage from.
        stream_tail_bytes, json_tail_bytes: and of its end. Usage is in the last events of a stream, and stands near the
            end of a JSON body, though not always: one of usual length is kept whole.
    """

    limits: Limits
    request_timeout_s: float = 60.0
    head_bytes: int = 4096
    stream_tail_bytes: int = 16 * 1024
    json_tail_bytes: int = 512 * 1024


class Exchange:
    """The owner of one conversation. Lives as long as its stream."""

    def __init__(
        self,
        stream: Stream,
        director: Director,
        options: ExchangeOptions,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._stream = stream
        self._director = director
        self._options = options
        self._clock = clock
        self._call_later = call_later
        self._conversation = Conversation(options.limits)
        self._received_s: float | None = None
        self._deadline: Timer | None = None
        self._assignment: Assignment | None = None
        self._window: BodyWindow | None = None
        self._first_token: FirstToken | None = None
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
            self._deadline = self._call_later(self._options.request_timeout_s, self._on_deadline)
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
        self._cancel_deadline()
        if self._assignment is not None:  # an error may have swallowed the end; otherwise this changes nothing
            self._director.end(self._assignment, EndCause.LOST, Usage())

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
        self._cancel_deadline()
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
        return self._conversation.route(
            Route(
                destination=answer.decision.destination,
                set_headers=answer.cycle.set_headers,
                body=answer.body,
                scores=self._director.scores(answer),
                rewrite_response=self._response_rewriter(answer),
            )
        )

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
        self._cancel_deadline()
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

    def _on_deadline(self) -> None:
        self._deadline = None
        denial = Denial.too_slow(f"the request body did not arrive within {self._options.request_timeout_s:g} s")
        headers = self._conversation.request_headers.last_values
        self._stream.send(self._reject(self._director.refuse(denial, headers)))
        self._stream.finish()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- response -----------------------------------------------------------------------------------------------

    def _respond(self, started: ResponseStarted) -> list[bytes]:
        if self._assignment is None:
            return self._conversation.respond({})
        added = self._director.response_started(
            self._assignment, started.status, started.headers.last_values, started.served_address
        )
        options = self._options
        tail_bytes = options.stream_tail_bytes if self._assignment.streamed else options.json_tail_bytes
        self._window = BodyWindow(options.head_bytes, tail_bytes)
        encoding = started.headers.get("content-encoding") or "identity"
        self._first_token = FirstToken(
            self._assignment.request.api,
            readable_events=self._assignment.streamed and encoding.strip().lower() == "identity",
        )
        return self._conversation.respond(added)

    def _observe(self, body: ResponseBody) -> None:
        if self._assignment is not None and self._window is not None and self._first_token is not None:
            self._window.feed(body.data)
            if self._first_token.feed(body.data):
                self._director.first_token(self._assignment)
            self._director.response_body(self._assignment, body.data)

    def _end(self, cause: EndCause) -> None:
        self._cancel_deadline()
        if self._assignment is None:
            return
        usage = Usage()
        try:
            usage = self._usage(self._assignment)
        finally:  # whatever a response may hold, its reservation ends with it
            token_events = 0 if self._first_token is None else self._first_token.token_events
            self._director.end(self._assignment, cause, usage, token_events)

    def _usage(self, assignment: Assignment) -> Usage:
        """Token counts from what was kept of the response."""
        usage = Usage()
        if self._window is None:
            return usage
        if not assignment.streamed:
            api, whole = assignment.request.api, self._window.whole
            if whole is None:
                return usage_from_ends(api, self._window.head, self._window.tail)
            return usage_from_json(api, whole)
        for payload in self._window.payloads():
            usage = merge_sse_usage(assignment.request.api, payload, usage)
        return usage
