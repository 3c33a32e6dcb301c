"""The conversation against Envoy's rules, for every mode, any fragmentation and any nonsense."""

import itertools

from envoy_rules import FDS, Http, converse, silent
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.endings import EndCause
from epp.wire import ext_proc_pb2 as pb
from epp.wire.codec import ProtocolError
from epp.wire.conversation import Conversation, Limits
from epp.wire.events import BodyMode, BodyTooLarge, Ended, Rejection, RequestReady, ResponseBody, ResponseStarted, Route

MODES = list(itertools.product(BodyMode, BodyMode))
CHUNKS = st.lists(st.binary(max_size=12) | st.integers(61_990, 62_010).map(lambda n: b"x" * n), max_size=5)


class Doubler:
    """Rewrites `ab` to `abab` wherever it is cut: holds an `a` at the end back until it is clear what follows."""

    def __init__(self):
        self.held = b""

    def __call__(self, data, last):
        data = self.held + data
        self.held = b"a" if data.endswith(b"a") and not last else b""
        return data[: len(data) - len(self.held)].replace(b"ab", b"abab")


@st.composite
def http(draw, headers):
    chunks = draw(st.none() | CHUNKS)
    return Http(
        headers=headers,
        chunks=chunks,
        trailers=chunks is not None and draw(st.booleans()),
        end_rides_on_data=draw(st.booleans()),
        seen_bytes=draw(st.none() | st.integers(1, 20)),
    )


def shown(message, mode):
    """What of a body a mode shows, and whether that is all of it."""
    if message.chunks is None or mode in (BodyMode.NONE, BodyMode.STREAMED):
        return None, message.chunks is None
    if mode is BodyMode.BUFFERED_PARTIAL:
        cut = message.seen_bytes is not None and message.seen_bytes < len(message.body)
        body = message.body[: message.seen_bytes] if cut else message.body
        # A body before trailers does not say whether it is whole.
        return body, not cut and (not message.trailers or not body)
    return message.body, True


@given(
    request=http([(":method", "POST"), ("x", "1")]),
    response=http([(":status", "200")]),
    modes=st.sampled_from(MODES),
    late=st.booleans(),
    new_body=st.none() | CHUNKS,
    observing=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_an_exchange_is_seen_and_forwarded_alike_however_it_is_cut(request, response, modes, late, new_body, observing):
    talk = converse(
        request, response, modes, late=late, observing=observing, route=lambda: Route("10.0.0.1:8000", body=new_body)
    )
    ready, started = talk.events[:2]
    assert isinstance(ready, RequestReady)
    assert isinstance(started, ResponseStarted)
    body, complete = shown(request, modes[0])
    assert (ready.body, ready.body_complete, ready.has_body) == (body, complete, request.chunks is not None)
    assert started.end_of_stream == (response.chunks is None)
    seen = b"".join(event.data for event in talk.of(ResponseBody))
    assert response.body.startswith(seen)
    if modes[1] is not BodyMode.NONE and response.seen_bytes is None:
        assert seen == response.body
    assert talk.events[-1] == Ended(EndCause.NATURAL)
    assert len(talk.of(Ended)) == len(talk.of(RequestReady)) == len(talk.of(ResponseStarted)) == 1
    if observing:
        return
    replaced = new_body is not None and body is not None and complete
    if replaced and modes[0] is not FDS and not body and request.trailers:
        replaced = False  # there was no body message that could carry another one
    assert talk.rules.request.passed_on == (b"".join(new_body) if replaced else request.body)
    assert talk.rules.response.passed_on == response.body
    assert talk.rules.metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.1:8000"


@given(
    response=http([(":status", "200"), ("content-length", "7")]),
    text=st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b""]), max_size=8),
    mode=st.sampled_from([FDS, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL]),
    late=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_rewritten_response_is_the_same_however_it_is_cut(response, text, mode, late):
    if response.chunks is not None:
        response.chunks = text
        response.seen_bytes = None
    if mode in (BodyMode.STREAMED, BodyMode.BUFFERED_PARTIAL):
        response.trailers = False  # nothing can be added there once trailers have come
    talk = converse(
        Http([(":method", "GET")]),
        response,
        (FDS, mode),
        late=late,
        route=lambda: Route("10.0.0.1:8000", rewrite_response=Doubler()),
    )
    assert talk.rules.response.passed_on == response.body.replace(b"ab", b"abab")
    assert b"".join(event.data for event in talk.of(ResponseBody)) == response.body
    if response.chunks is not None and mode is not BodyMode.BUFFERED:
        assert talk.rules.response.removed == {"content-length"}


def message(kind, body, end, upgrade):
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key="upgrade", value="x")] if upgrade else [])
    match kind.split("_")[1]:
        case "headers":
            part = pb.HttpHeaders(headers=headers, end_of_stream=end)
        case "body":
            part = pb.HttpBody(body=body, end_of_stream=end)
        case _:
            part = pb.HttpTrailers()
    return pb.ProcessingRequest(**{kind: part})


MESSAGES = st.builds(
    message,
    st.sampled_from([field.name for field in pb.ProcessingRequest.DESCRIPTOR.oneofs[0].fields]),
    st.binary(max_size=10),
    st.booleans(),
    st.booleans(),
)
STEPS = st.lists(MESSAGES | st.binary(max_size=5) | st.sampled_from(["answer", "reject", "close"]), max_size=14)


@given(steps=STEPS, modes=st.sampled_from(MODES), observing=st.booleans())
@settings(max_examples=600, deadline=None)
def test_nonsense_is_a_protocol_error_at_worst_and_ends_once(steps, modes, observing):
    conversation = Conversation(Limits(max_request_body_bytes=15))
    events = []
    first = True

    answered = set()
    for step in steps:
        was_finished = conversation.finished
        replies = []
        try:
            match step:
                case "answer":
                    for i, event in enumerate(events):
                        if i not in answered:
                            answered.add(i)
                            match event:
                                case RequestReady() if not any(isinstance(e, BodyTooLarge) for e in events):
                                    replies += conversation.route(Route("10.0.0.1:8000"))
                                case BodyTooLarge():
                                    replies += conversation.reject(Rejection(413, b"{}"))
                                case ResponseStarted():
                                    replies += conversation.respond({"x": "y"})
                case "reject":
                    replies += conversation.reject(Rejection(429, b"{}"))
                case "close":
                    events += conversation.closed()
                case bytes():
                    assert silent(conversation.receive(step))
                case _:
                    if first:
                        step.observability_mode = observing
                        step.protocol_config.request_body_mode = modes[0].value
                        step.protocol_config.response_body_mode = modes[1].value
                        first = False
                    told = conversation.receive(step.SerializeToString())
                    new, replies = told.events, told.replies
                    events += new
        except ProtocolError:
            events += conversation.closed(broken=True)
        assert not (was_finished and replies)
        if observing:
            assert not replies
    events += conversation.closed()
    assert conversation.finished
    assert [type(event) for event in events].count(Ended) == 1
    assert isinstance(events[-1], Ended)
    assert [type(event) for event in events].count(RequestReady) <= 1
