"""Envoy's side of an ext_proc stream, written down independently of ours, on the full set of Envoy's messages.

`EnvoyRules` is told each message that Envoy sends and judges each reply as Envoy's filter does: what kind may come
when, and what becomes of headers and body. `parts_of` cuts an HTTP message as Envoy would in a mode, and `converse`
lets a conversation and the rules talk until nothing is left to say.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy

from epp.wire.conversation import Conversation, Step
from epp.wire.events import BodyMode, Event, RequestReady, ResponseStarted, Route

FDS = BodyMode.FULL_DUPLEX_STREAMED


@dataclass
class Http:
    """One HTTP message. `chunks` is `None` when it ends with its headers."""

    headers: Sequence[tuple[str, str]] = ()
    chunks: Sequence[bytes] | None = None
    trailers: bool = False
    end_rides_on_data: bool = False  # as HTTP/2 does; else an empty last chunk ends the body
    seen_bytes: int | None = None  # BUFFERED_PARTIAL: where the buffer was full

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks or ())


@dataclass
class Part:
    kind: str  # headers, body, trailers
    end: bool = False
    body: bytes = b""


def header_map(pairs):
    return base_pb2.HeaderMap(
        headers=[base_pb2.HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs]
    )


def parts_of(http: Http, mode: BodyMode) -> list[Part]:
    """How Envoy shows a message in a mode."""
    if http.chunks is None:
        return [Part("headers", end=not http.trailers)] + [Part("trailers")] * http.trailers
    parts = [Part("headers")]
    ends = not http.trailers
    if mode is BodyMode.BUFFERED:
        if http.body or ends:
            parts.append(Part("body", ends, http.body))
    elif mode is BodyMode.BUFFERED_PARTIAL:
        if http.seen_bytes is not None and http.seen_bytes < len(http.body):
            parts.append(Part("body", False, http.body[: http.seen_bytes]))
        elif http.body or ends:
            parts.append(Part("body", ends, http.body))
    elif mode is not BodyMode.NONE:
        chunks = [chunk for chunk in http.chunks if chunk]
        parts += [Part("body", False, chunk) for chunk in chunks]
        if ends and http.end_rides_on_data and chunks:
            parts[-1].end = True
        elif ends:
            parts.append(Part("body", True))
    return parts + [Part("trailers")] * http.trailers


@dataclass
class Direction:
    side: str
    mode: BodyMode
    http: Http
    waiting: deque[Part] = field(default_factory=deque)  # sent, not yet answered
    sent: list[Part] = field(default_factory=list)
    headers_answered: bool = False
    set_headers: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    clear_route_cache: bool = False
    forwarded: bytearray = field(default_factory=bytearray)
    ended: bool = False
    trailers_answered: bool = False

    def blocks(self) -> bool:
        """Envoy sends no next part before it has got an answer. (FULL_DUPLEX_STREAMED never waits.)"""
        return self.mode is not FDS and bool(self.waiting)

    def show(self, part: Part) -> None:
        self.sent.append(part)
        self.waiting.append(part)

    def answer(self, kind: str, reply) -> None:
        if kind == "headers":
            assert self.waiting, "a headers reply to nothing"
            assert self.waiting.popleft().kind == "headers"
            assert not self.headers_answered
            self.headers_answered = True
            self.mutate(reply.response)
            assert not reply.response.HasField("body_mutation")
        elif kind == "body":
            self.body(reply.response)
        else:
            assert any(part.kind == "trailers" for part in self.sent), "a trailers reply to no trailers"
            assert self.headers_answered
            assert not self.trailers_answered
            if self.mode is not FDS:
                assert self.waiting.popleft().kind == "trailers"
            self.trailers_answered = True

    def mutate(self, common) -> None:
        assert common.status == envoy.CommonResponse.CONTINUE
        assert len(common.header_mutation.set_headers) <= 100
        self.clear_route_cache |= common.clear_route_cache
        for option in common.header_mutation.set_headers:
            assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
            assert option.header.key == option.header.key.lower()
            assert not option.header.value
            assert option.header.key not in self.set_headers, "set twice"
            self.set_headers[option.header.key] = option.header.raw_value.decode()
        self.removed |= set(common.header_mutation.remove_headers)
        assert not self.removed & set(self.set_headers)

    def body(self, common) -> None:
        kind = common.body_mutation.WhichOneof("mutation")
        assert self.headers_answered, "body before headers"
        if self.mode is FDS:
            assert kind == "streamed_response", "spurious message"
            piece = common.body_mutation.streamed_response
            assert len(piece.body) <= 62_000
            assert piece.body or piece.end_of_stream, "a piece of nothing"
            assert not self.ended
            assert not self.trailers_answered
            if piece.end_of_stream:
                assert any(part.kind == "body" and part.end for part in self.sent), "ended before Envoy"
                self.ended = True
            self.forwarded += piece.body
            return
        assert kind != "streamed_response", "spurious message"
        part = self.waiting.popleft()
        assert part.kind == "body"
        data = {"body": common.body_mutation.body, "clear_body": b"", None: part.body}[kind]
        if self.mode is BodyMode.STREAMED:
            assert not common.HasField("header_mutation"), "headers have left"
        else:
            self.mutate(common)
        if kind == "body" and self.mode is BodyMode.BUFFERED:
            assert self.set_headers["content-length"] == str(len(data))
        else:
            assert "content-length" not in self.set_headers
        self.forwarded += data
        self.ended |= part.end

    def check_complete(self) -> None:
        """After all parts: everything is answered and forwarded."""
        if self.mode is FDS:
            assert self.headers_answered
            assert self.ended == any(part.kind == "body" and part.end for part in self.sent)
        else:
            assert not self.waiting
        assert self.trailers_answered == any(part.kind == "trailers" for part in self.sent)

    @property
    def passed_on(self) -> bytes:
        """What went on to the other side: what came through us, and what Envoy did not show."""
        shown = sum(len(part.body) for part in self.sent)
        return bytes(self.forwarded) + self.http.body[shown:]


class EnvoyRules:
    def __init__(
        self, request: Http, response: Http, modes: tuple[BodyMode, BodyMode], observing: bool = False
    ) -> None:
        self.request = Direction("request", modes[0], request)
        self.response = Direction("response", modes[1], response)
        self.observing = observing
        self.metadata: dict = {}
        self.immediate: envoy.ImmediateResponse | None = None
        self._first = True

    def message(self, direction: Direction, part: Part, metadata=None) -> bytes:
        direction.show(part)
        proto = envoy.ProcessingRequest(observability_mode=self.observing)
        if self._first:
            self._first = False
            proto.protocol_config.request_body_mode = ProcessingMode.BodySendMode.Value(self.request.mode.name)
            proto.protocol_config.response_body_mode = ProcessingMode.BodySendMode.Value(self.response.mode.name)
        name = f"{direction.side}_{part.kind}"
        match part.kind:
            case "headers":
                headers = header_map(direction.http.headers)
                getattr(proto, name).CopyFrom(envoy.HttpHeaders(headers=headers, end_of_stream=part.end))
            case "body":
                getattr(proto, name).CopyFrom(envoy.HttpBody(body=part.body, end_of_stream=part.end))
            case _:
                getattr(proto, name).CopyFrom(envoy.HttpTrailers())
        for namespace, values in (metadata or {}).items():
            proto.metadata_context.filter_metadata[namespace].update(values)
        return proto.SerializeToString()

    def got(self, replies: Sequence[bytes]) -> None:
        for data in replies:
            assert not self.observing, "a reply to an observed message"
            assert self.immediate is None, "a reply after the last word"
            reply = envoy.ProcessingResponse.FromString(data)
            name = reply.WhichOneof("response")
            if reply.HasField("dynamic_metadata"):
                assert not self.metadata, "metadata twice"
                self.metadata = dict(reply.dynamic_metadata)
            if name == "immediate_response":
                self.immediate = reply.immediate_response
                continue
            side, kind = name.split("_")
            direction = self.request if side == "request" else self.response
            direction.answer(kind, getattr(reply, name))


@dataclass
class Talk:
    conversation: Conversation
    rules: EnvoyRules
    events: list[Event]

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def converse(
    request: Http,
    response: Http,
    modes: tuple[BodyMode, BodyMode] = (FDS, FDS),
    *,
    route: Callable[[], Route] = lambda: Route("10.0.0.1:8000"),
    respond=None,
    late: bool = False,
    observing: bool = False,
    metadata=None,
    response_metadata=None,
) -> Talk:
    """Run a whole exchange. `late`: the owner answers only when Envoy has nothing more to send without the answer."""
    rules = EnvoyRules(request, response, modes, observing)
    talk = Talk(Conversation(), rules, [])
    due: deque[Callable[[], list[bytes]]] = deque()

    def send(direction: Direction, part: Part, extra) -> None:
        step = talk.conversation.receive(rules.message(direction, part, extra))
        talk.events += step.events
        rules.got(step.replies)
        for event in step.events:
            if isinstance(event, RequestReady):
                due.append(lambda: talk.conversation.route(route()))
            elif isinstance(event, ResponseStarted):
                due.append(lambda: talk.conversation.respond(respond or {}))
        if not late:
            settle()

    def settle() -> None:
        while due:
            rules.got(due.popleft()())

    for direction, extra in ((rules.request, metadata), (rules.response, response_metadata)):
        for part in parts_of(direction.http, direction.mode):
            if direction.blocks():
                settle()
            send(direction, part, extra)
        settle()
    if not observing:
        rules.request.check_complete()
        rules.response.check_complete()
    talk.events += talk.conversation.closed()
    assert talk.conversation.closed() == []
    return talk


def silent(step: Step) -> bool:
    """A message led to nothing."""
    return not (step.events or step.replies)
