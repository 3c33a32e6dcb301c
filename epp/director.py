"""One request through the picker, and its outcome back.

The director turns what the wire read into a `Request`, runs it through the pipeline against one snapshot, reserves the
chosen endpoints in the ledger, and, when the response has ended, releases them and tells the plugins how it went. It is
synchronous and does no I/O; the clock and the random generator are given to it. Two rules hold everywhere:

* reserve before replying, release exactly once: `end` may be called on any path, and only its first call counts;
* fail towards serving: what goes wrong inside a plugin costs quality, never the request.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from epp.endings import EndCause, is_good
from epp.inference.apis import Parsers, error_style_of
from epp.inference.parse import BadRequest, parse_request
from epp.inference.request import Api, ErrorStyle, Prompt, Request, Usage
from epp.inference.rewrite import Rewritten, insert_model, splice_model
from epp.ledger import Ledger, Outcome
from epp.pool.snapshot import Snapshot
from epp.pool.subset import rows_in_subset
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DEFAULT_PROMPT, PREFIX_MATCH, UNCACHED_TOKENS, TokenizedPrompt
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.pipeline import Pipeline
from epp.wire import names

PATH_HEADERS = (":path", "x-original-path", "x-forwarded-path")
REQUEST_ID_HEADER = "x-request-id"
DEFAULT_PATH = "/v1/completions"
DEFAULT_FAIRNESS_ID = "default-flow"
NO_TEXT = (Prompt(()),)
_UUID_VERSION_4 = (4 << 76) | (2 << 62)
_UUID_FREE_BITS = ~((15 << 76) | (3 << 62))
DEFAULT_MATCH = PREFIX_MATCH.by(None)


class Arrival(NamedTuple):
    """A request as the wire read it; see `epp.wire.events.RequestReady` for the fields."""

    headers: Mapping[str, str]
    body: bytes | None
    body_complete: bool
    has_body: bool
    subset: tuple[str, ...] | None
    received_s: float


@dataclass(slots=True)
class Assignment:
    """A request that was sent on, from its decision to its end. Only the director changes it."""

    request: Request
    cycle: Cycle
    decision: Decision
    received_s: float
    dispatched_s: float
    body: Sequence[bytes] | None = None
    served_endpoint_id: str = ""
    status: int | None = None
    streamed: bool = False
    first_token_s: float | None = None
    response_bytes: int = 0
    last_chunk_s: float | None = None
    response_processing_s: float = 0.0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that we answer ourselves."""

    denial: Denial
    error_style: ErrorStyle
    request: Request | None = None


class Observer(Protocol):
    """Who counts what happens. Called inline; must be quick and must not raise."""

    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None: ...

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None: ...

    def chunk_gap(self, request: Request, seconds: float) -> None:
        """So long passed between two chunks of a streamed response."""

    def request_ended(self, request: Request, outcome: Outcome) -> None: ...

    def plugins_observed(self, cycle: Cycle) -> None:
        """At the end of a request, if plugins left observations there; takes them out of the cycle."""


@dataclass(frozen=True, slots=True)
class DirectorOptions:
    """
    Attributes:
        objectives: objective name to priority; unknown names have priority 0. It may change at any time.
        resolve_rewrite: where a request for this model goes instead, on top of what headers say; `None`: there.
        use_subset: honour the proxy's subset hint.
        emit_scores: put every scored endpoint and its score into the `envoy.lb` metadata.
    """

    objectives: Mapping[str, int] = field(default_factory=dict)
    resolve_rewrite: Callable[[str | None, random.Random], Rewritten | None] | None = None
    use_subset: bool = True
    emit_scores: bool = False


class Director:
    """See the module's text. One per process."""

    def __init__(
        self,
        pipeline: Pipeline,
        parsers: Parsers,
        ledger: Ledger,
        snapshot: Callable[[], Snapshot],
        observer: Observer,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        options: DirectorOptions | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._parsers = parsers
        self._ledger = ledger
        self._snapshot = snapshot
        self._observer = observer
        self._clock = clock
        self._rng = rng
        self._options = options or DirectorOptions()
        self._ids = itertools.count(1)
        self._candidates = Candidates.all_of(snapshot())

    # --- towards the model server -------------------------------------------------------------------------------

    def decide(self, arrival: Arrival) -> Assignment | Refusal:
        """Choose where the request goes. Reserves the choice before it returns it."""
        started_s = self._clock()
        request = self._read(arrival)
        if isinstance(request, Refusal):
            return self._refuse(request, None, started_s)
        return self.decide_request(request, arrival, started_s)

    def decide_request(self, request: Request, arrival: Arrival, started_s: float) -> Assignment | Refusal:
        """The same for a request that has been read; its id must be new. The clock showed `started_s` before that."""
        cycle = Cycle(request=request, now_s=started_s, rng=self._rng, received_s=arrival.received_s)
        decision = self._choose(arrival, cycle)
        if isinstance(decision, Denial):
            return self._refuse(Refusal(decision, request.error_style, request), cycle, started_s)
        assignment = self._assign(arrival, cycle, decision)
        self._observer.request_routed(request, decision, cycle, assignment.dispatched_s - started_s)
        cycle.explanations = None
        forget_text(assignment)
        return assignment

    def refuse(self, denial: Denial, headers: Mapping[str, str]) -> Refusal:
        """A refusal of a request that was never read to its end: too large, or too slow."""
        api = self._parsers.api_for(first_of(headers, PATH_HEADERS) or DEFAULT_PATH)
        return self._refuse(Refusal(denial, error_style_of(api)), None, self._clock())

    def scores(self, assignment: Assignment) -> Mapping[str, float] | None:
        """Address to total score of every scored candidate, if scores are to be emitted."""
        result = assignment.decision.profiles.get(assignment.decision.primary)
        if not self._options.emit_scores or result is None or not result.scores:
            return None
        endpoints = assignment.decision.snapshot.endpoints
        return {endpoints[row].address: float(total) for row, total in zip(result.rows, result.totals, strict=True)}

    def _read(self, arrival: Arrival) -> Request | Refusal:
        headers = arrival.headers
        path = first_of(headers, PATH_HEADERS) or DEFAULT_PATH
        api = self._parsers.api_for(path)
        if api is None and not arrival.has_body:
            api = Api.OPAQUE
        if api is None:
            plain_path = path.partition("?")[0]
            return Refusal(
                Denial.bad_request(f"no parser registered matching path suffix for: {plain_path}"), ErrorStyle.OPENAI
            )
        parsed = parse_request(
            api,
            arrival.body,
            headers,
            id=f"stream-{next(self._ids)}",
            path=path,
            body_complete=arrival.body_complete,
            has_body=arrival.has_body,
        )
        if isinstance(parsed, BadRequest):
            return Refusal(Denial.bad_request(parsed.message), error_style_of(api))
        objective = first_of(headers, names.OBJECTIVE)
        target_model, fairness_id = first_of(headers, names.MODEL_REWRITE), first_of(headers, names.FAIRNESS_ID)
        rewrite = self._options.resolve_rewrite
        rewritten = (
            None if rewrite is None or not parsed.has_model else rewrite(target_model or parsed.model, self._rng)
        )
        if objective is None and not target_model and not fairness_id and rewritten is None:
            return parsed  # as a rule: clients say nothing of this, and it stands as it was parsed
        return parsed._replace(
            target_model=rewritten.model if rewritten is not None else target_model or parsed.model,
            rewritten_by="" if rewritten is None else rewritten.by,
            objective=objective,
            priority=self._options.objectives.get(objective, 0) if objective else 0,
            fairness_id=fairness_id or DEFAULT_FAIRNESS_ID,
        )

    def _choose(self, arrival: Arrival, cycle: Cycle) -> Decision | Denial:
        """Run the pipeline over the endpoints that the proxy allows."""
        denial = self._pipeline.process_request(cycle)
        if denial is not None:
            return denial
        candidates = self._everyone()
        if arrival.subset is not None and self._options.use_subset:
            candidates = candidates.intersect(rows_in_subset(candidates.snapshot, arrival.subset))
        decision = self._pipeline.decide(cycle, candidates)
        if (
            isinstance(decision, Decision)
            and wants_cached_prefix(cycle.request)
            and not has_cached_prefix(cycle, decision)
        ):
            return Denial.precondition_failed("no decode worker has the requested KV cache")
        return decision

    def _everyone(self) -> Candidates:
        """All endpoints: the very same object until something changes."""
        snapshot = self._snapshot()
        if snapshot is not self._candidates.snapshot:
            self._candidates = Candidates.all_of(snapshot)
        return self._candidates

    def _assign(self, arrival: Arrival, cycle: Cycle, decision: Decision) -> Assignment:
        request = cycle.request
        body = rewritten_body(arrival, cycle)
        if REQUEST_ID_HEADER not in request.headers:
            cycle.set_headers[REQUEST_ID_HEADER] = random_uuid(self._rng)
        if request.generates:  # last of all: between a reservation and the assignment that ends it nothing may fail
            self._reserve(cycle, decision)
            self._pipeline.pre_request(cycle, decision)
        return Assignment(
            request=request,
            cycle=cycle,
            decision=decision,
            received_s=arrival.received_s,
            dispatched_s=self._clock(),
            body=body,
            served_endpoint_id=decision.endpoints[0].id,
        )

    def _reserve(self, cycle: Cycle, decision: Decision) -> None:
        """Book the request on the first endpoint of every profile that ran: output only where it will be decoded."""
        uncached = next((cycle.data[key] for key in cycle.data if key.kind is UNCACHED_TOKENS), None)
        prompt = cycle.get(DEFAULT_PROMPT)
        for name, result in decision.profiles.items():
            if result is None or not result.picked:
                continue
            row = result.picked[0]
            is_primary = name == decision.primary
            prompt_tokens = prompt.tokens if prompt is not None else 0
            prefill_tokens, output_tokens = prompt_tokens, 0
            if uncached is not None:
                prefill_tokens = int(uncached.prefill_tokens[row])
                output_tokens = int(uncached.expected_output_tokens) if is_primary else 0
            endpoint = decision.endpoints[0] if is_primary else decision.snapshot.endpoints[row]
            self._ledger.reserve(
                cycle.request.id,
                endpoint.id,
                prefill_tokens=prefill_tokens,
                output_tokens=output_tokens,
                context_tokens=prompt_tokens + output_tokens if is_primary else 0,
            )

    def _refuse(self, refusal: Refusal, cycle: Cycle | None, started_s: float) -> Refusal:
        self._observer.request_refused(refusal.request, refusal.denial, cycle, self._clock() - started_s)
        return refusal

    # --- and back -------------------------------------------------------------------------------------------------

    def response_started(
        self, assignment: Assignment, status: int | None, headers: Mapping[str, str], served_address: str | None
    ) -> Mapping[str, str]:
        """Response headers came. Returns the response headers to add."""
        assignment.status = status
        assignment.streamed = "text/event-stream" in (headers.get("content-type") or "").lower()
        if served_address is not None:
            self._served_by(assignment, served_address)
        self._pipeline.response_headers(assignment.cycle, assignment.decision, status, headers, served_address)
        return assignment.cycle.response_headers

    def _served_by(self, assignment: Assignment, address: str) -> None:
        """Follow the request to the endpoint that really answered: a fallback of ours, or the proxy's own choice."""
        snapshot = assignment.decision.snapshot
        row = snapshot.row_by_address.get(address)
        if row is None:  # of one that has come since
            snapshot = self._snapshot()
            row = snapshot.row_by_address.get(address)
        if row is None:
            return
        endpoint_id = snapshot.endpoints[row].id
        if endpoint_id != assignment.served_endpoint_id:
            self._ledger.move(assignment.request.id, assignment.served_endpoint_id, endpoint_id)
            assignment.served_endpoint_id = endpoint_id

    def response_body(self, assignment: Assignment, data: bytes) -> None:
        """Bytes of the response body passed."""
        if not data:
            return
        now_s = self._clock()
        assignment.response_bytes += len(data)
        if assignment.streamed:
            if assignment.last_chunk_s is not None:
                self._observer.chunk_gap(assignment.request, now_s - assignment.last_chunk_s)
            assignment.last_chunk_s = now_s
        if self._pipeline.observes_chunks:
            self._pipeline.response_chunk(assignment.cycle, assignment.decision, data, now_s)

    def first_token(self, assignment: Assignment) -> None:
        """The first token passed, before `response_body` is told of its bytes. Only the first call counts, and none of
        an error: the prompt was not computed, and what came is no token."""
        if assignment.first_token_s is None and is_good(assignment.status):
            assignment.first_token_s = now_s = self._clock()
            self._ledger.first_token(assignment.request.id)
            self._pipeline.first_token(assignment.cycle, assignment.decision, now_s)

    @property
    def observes_chunks(self) -> bool:
        """A plugin wants to see every chunk of responses."""
        return self._pipeline.observes_chunks

    def let_go(self, assignment: Assignment) -> None:
        """The rest of the response will not be seen. What only decisions need is not kept until its end."""
        request = assignment.request
        assignment.body = None
        assignment.request = request._replace(headers={})
        assignment.cycle.request = assignment.request
        assignment.cycle.data.clear()
        assignment.cycle.set_headers.clear()

    def end(
        self,
        assignment: Assignment,
        cause: EndCause,
        usage: Usage,
        token_events: int = 0,
        *,
        counted_s: float | None = None,
        ended_s: float | None = None,
        response_bytes: int | None = None,
    ) -> None:
        """The exchange is over, in whatever way. Only the first call counts. For the arguments see `Outcome`.

        Args:
            ended_s: `None`: now.
            response_bytes: `None`: those that `response_body` was told of.
        """
        if assignment.ended:
            return
        assignment.ended = True
        outcome = Outcome(
            cause=cause,
            status=assignment.status,
            streamed=assignment.streamed,
            served_endpoint_id=assignment.served_endpoint_id,
            received_s=assignment.received_s,
            dispatched_s=assignment.dispatched_s,
            first_token_s=assignment.first_token_s,
            ended_s=self._clock() if ended_s is None else ended_s,
            usage=usage,
            response_bytes=assignment.response_bytes if response_bytes is None else response_bytes,
            response_processing_s=assignment.response_processing_s,
            token_events=token_events,
            counted_s=counted_s,
            seen_bytes=assignment.response_bytes,
        )
        if assignment.request.generates:
            self._ledger.release(assignment.request.id)
            self._pipeline.end(assignment.cycle, assignment.decision, outcome)
        self._observer.request_ended(assignment.request, outcome)
        if assignment.cycle.observations:
            self._observer.plugins_observed(assignment.cycle)


def forget_text(assignment: Assignment) -> None:
    """A prompt may be megabytes, and its response minutes away. Once it is decided on, only its size still counts."""
    cycle, request = assignment.cycle, assignment.request
    if request.prompts:
        assignment.request = cycle.request = request._replace(prompts=NO_TEXT * len(request.prompts))
    for value in cycle.data.values():
        if isinstance(value, TokenizedPrompt):
            value.prompts = ()


def first_of(headers: Mapping[str, str], spellings: Sequence[str]) -> str | None:
    """The first of these headers that is present, even if it is empty."""
    for name in spellings:
        if name in headers:
            return headers[name]
    return None


def random_uuid(rng: random.Random) -> str:
    """A UUID of version 4 (RFC 9562) as text. `uuid.UUID` makes the same in 2.6 µs, this takes 0.9."""
    digits = f"{rng.getrandbits(128) & _UUID_FREE_BITS | _UUID_VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def rewritten_body(arrival: Arrival, cycle: Cycle) -> Sequence[bytes] | None:
    """The body with the target model spliced in; `None` when nothing is to change or nothing can."""
    request = cycle.request
    if request.target_model is None or request.target_model == request.model or arrival.body is None:
        return None
    if not arrival.body_complete:
        parts = None
    elif request.model is None and request.has_model:
        parts = insert_model(arrival.body, request.target_model)
    else:
        parts = splice_model(arrival.body, request.target_model)
    if parts is None:
        cycle.notes["model-rewrite"] = "the body has no model that could be replaced"
    return parts


def wants_cached_prefix(request: Request) -> bool:
    """`Prefer: if-available` (RFC 7240): serve only from a server that has the prompt's prefix cached."""
    prefer = request.headers.get("prefer")
    if prefer is None:
        return False
    return any(p.partition(";")[0].strip().lower() == "if-available" for p in prefer.split(","))


def has_cached_prefix(cycle: Cycle, decision: Decision) -> bool:
    match = cycle.get(DEFAULT_MATCH)
    row = decision.snapshot.row_by_id[decision.endpoints[0].id]
    return match is not None and bool(match.match_blocks[row] > 0)
