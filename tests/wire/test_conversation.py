"""What each mode does, and what each end means, by example. Envoy's rules judge all that `converse` runs."""

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from envoy_rules import FDS, Http, converse, silent

from epp.endings import EndCause
from epp.wire import table
from epp.wire.codec import ProtocolError
from epp.wire.conversation import Conversation, Limits
from epp.wire.events import (
    BodyMode,
    BodyTooLarge,
    Ended,
    Rejection,
    RequestReady,
    ResponseBody,
    ResponseStarted,
    Route,
)

BUFFERED, PARTIAL, STREAMED, NONE = (
    BodyMode.BUFFERED,
    BodyMode.BUFFERED_PARTIAL,
    BodyMode.STREAMED,
    BodyMode.NONE,
)
POST = ((":method", "POST"), (":path", "/v1/completions"), ("content-type", "application/json"))
OK = ((":status", "200"), ("x-envoy-upstream-service-time", "3"))
ROUTE = Route("10.0.0.1:8000")


def header_map(pairs):
    return base_pb2.HeaderMap(headers=[base_pb2.HeaderValue(key=k, raw_value=v.encode()) for k, v in pairs])


def message(name, *, pairs=(), body=b"", end=False, modes=None, observing=False, metadata=None):
    proto = envoy.ProcessingRequest(observability_mode=observing)
    if name.endswith("headers"):
        getattr(proto, name).CopyFrom(envoy.HttpHeaders(headers=header_map(pairs), end_of_stream=end))
    elif name.endswith("body"):
        getattr(proto, name).CopyFrom(envoy.HttpBody(body=body, end_of_stream=end))
    else:
        getattr(proto, name).CopyFrom(envoy.HttpTrailers())
    if modes is not None:
        proto.protocol_config.request_body_mode = modes[0].value
        proto.protocol_config.response_body_mode = modes[1].value
    for namespace, values in (metadata or {}).items():
        proto.metadata_context.filter_metadata[namespace].update(values)
    return proto.SerializeToString()


def replies(messages):
    return [envoy.ProcessingResponse.FromString(data) for data in messages]


def kinds(messages):
    return [reply.WhichOneof("response") for reply in replies(messages)]


def started(modes=(FDS, FDS), pairs=POST, end=True, limits=None, observing=False):
    """A conversation whose request headers have come."""
    conversation = Conversation(limits or Limits())
    step = conversation.receive(message("request_headers", pairs=pairs, end=end, modes=modes, observing=observing))
    return conversation, step


def routed(modes=(FDS, FDS), route=ROUTE, pairs=POST):
    conversation, _ = started(modes, pairs)
    assert conversation.route(route)
    return conversation


def responding(modes=(FDS, FDS), route=ROUTE, pairs=OK):
    conversation = routed(modes, route)
    conversation.receive(message("response_headers", pairs=pairs))
    conversation.respond({})
    return conversation


# --- request, FULL_DUPLEX_STREAMED ---------------------------------------------------------------------------------


def test_the_headers_reply_is_withheld_until_the_body_is_complete():
    conversation, step = started(end=False)
    assert silent(step)
    assert silent(conversation.receive(message("request_body", body=b"ab")))
    step = conversation.receive(message("request_body", body=b"cd", end=True))
    assert step.replies == []
    (ready,) = step.events
    assert ready.body == b"abcd"
    assert kinds(conversation.route(ROUTE)) == ["request_headers", "request_body"]


@pytest.mark.parametrize("modes", [None, (FDS, FDS)])
def test_without_announced_modes_it_is_full_duplex(modes):
    conversation = Conversation()
    assert silent(conversation.receive(message("request_headers", pairs=POST, modes=modes)))
    assert conversation.receive(message("request_body", body=b"x", end=True)).events[0].body == b"x"


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (0, [0]),
        (1, [1]),
        (61_999, [61_999]),
        (62_000, [62_000]),
        (62_001, [62_000, 1]),
        (124_000, [62_000, 62_000]),
        (300_000, [62_000] * 4 + [52_000]),
    ],
)
def test_a_body_goes_back_in_pieces_with_one_end_and_nothing_after(size, pieces):
    body = bytes(i % 251 for i in range(size))
    conversation, _ = started(end=False)
    conversation.receive(message("request_body", body=body))
    conversation.receive(message("request_body", end=True))
    head, *rest = replies(conversation.route(ROUTE))
    streamed = [reply.request_body.response.body_mutation.streamed_response for reply in rest]
    assert head.HasField("request_headers")
    assert [len(piece.body) for piece in streamed] == pieces
    assert [piece.end_of_stream for piece in streamed] == [False] * (len(pieces) - 1) + [True]
    assert b"".join(piece.body for piece in streamed) == body


def test_a_20_mb_body_in_many_chunks_goes_back_byte_for_byte():
    body = b"0123456789abcdef" * (20 * 1024 * 1024 // 16)
    chunks = [body[i : i + 32_768] for i in range(0, len(body), 32_768)]
    assert converse(Http(POST, chunks), Http(OK)).rules.request.passed_on == body


def test_with_trailers_no_piece_carries_the_end():
    conversation, _ = started(end=False)
    conversation.receive(message("request_body", body=b"abc"))
    step = conversation.receive(message("request_trailers"))
    assert step.events[0].body == b"abc"
    _, piece, trailers = replies(conversation.route(ROUTE))
    assert not piece.request_body.response.body_mutation.streamed_response.end_of_stream
    assert trailers.HasField("request_trailers")


def test_a_request_without_a_body_is_ready_with_its_headers():
    conversation, step = started()
    (ready,) = step.events
    assert (ready.body, ready.body_complete, ready.has_body) == (None, True, False)
    assert kinds(conversation.route(ROUTE)) == ["request_headers"]


@pytest.mark.parametrize("extra", [b"", b"tail"])
def test_a_repeated_last_chunk_is_ignored(extra):
    conversation, _ = started(end=False)
    assert len(conversation.receive(message("request_body", body=b"tail", end=True)).events) == 1
    assert silent(conversation.receive(message("request_body", body=extra, end=True)))
    assert kinds(conversation.route(ROUTE)) == ["request_headers", "request_body"]
    assert silent(conversation.receive(message("request_body", body=extra, end=True)))
    assert not conversation.finished


@pytest.mark.parametrize("mode", list(BodyMode))
@pytest.mark.parametrize(
    "pairs", [((":method", "GET"), ("upgrade", "websocket"), ("connection", "upgrade")), ((":method", "CONNECT"),)]
)
def test_a_tunnel_is_ready_with_its_headers(mode, pairs):
    conversation, step = started((mode, FDS), pairs, end=False)
    (ready,) = step.events
    assert (ready.body, ready.has_body) == (None, False)
    assert kinds(conversation.route(ROUTE)) == ["request_headers"]


def test_an_upgrade_that_is_offered_along_with_a_body_waits_for_it():
    _, step = started(pairs=(*POST, ("upgrade", "h2c"), ("content-length", "2")), end=False)
    assert silent(step)


def test_bytes_of_a_tunnel_wait_for_the_route_and_then_flow():
    conversation, _ = started(pairs=((":method", "CONNECT"),), end=False)
    assert silent(conversation.receive(message("request_body", body=b"early")))
    first = replies(conversation.route(ROUTE))
    assert [reply.WhichOneof("response") for reply in first] == ["request_headers", "request_body"]
    assert first[1].request_body.response.body_mutation.streamed_response.body == b"early"
    (later,) = replies(conversation.receive(message("request_body", body=b"later", end=True)).replies)
    assert later.request_body.response.body_mutation.streamed_response.body == b"later"
    assert later.request_body.response.body_mutation.streamed_response.end_of_stream


def test_a_new_body_takes_the_place_of_the_old_one_and_its_length_goes():
    talk = converse(
        Http((*POST, ("content-length", "3")), [b"abc"]),
        Http(OK),
        route=lambda: Route("a:1", body=[b"new", b"", b"er"]),
    )
    assert talk.rules.request.passed_on == b"newer"
    assert "content-length" in talk.rules.request.removed
    assert "content-length" not in talk.rules.request.set_headers


# --- request, other modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [BUFFERED, PARTIAL])
def test_buffered_headers_are_answered_at_once_and_the_body_reply_routes(mode):
    conversation, step = started((mode, NONE), end=False)
    (reply,) = replies(step.replies)
    assert reply == envoy.ProcessingResponse(request_headers=envoy.HeadersResponse())
    (ready,) = conversation.receive(message("request_body", body=b"abc", end=True)).events
    assert (ready.body, ready.body_complete) == (b"abc", True)
    (reply,) = replies(conversation.route(ROUTE))
    common = reply.request_body.response
    assert common.clear_route_cache
    assert common.header_mutation.set_headers[0].header.key == "x-gateway-destination-endpoint"
    assert not common.HasField("body_mutation")


def test_a_buffered_body_is_replaced_with_a_length_that_matches():
    pairs = (*POST, ("content-length", "33"))
    body = b'{ "model" : "m",  "prompt":"x" }\n'
    new = [b'{ "model" : "', b"a-much-longer-name", b'",  "prompt":"x" }\n']
    rules = converse(Http(pairs, [body]), Http(OK), (BUFFERED, NONE), route=lambda: Route("a:1", body=new)).rules
    assert rules.request.passed_on == b"".join(new)
    assert rules.request.set_headers["content-length"] == str(len(b"".join(new)))
    assert "content-length" not in rules.request.removed


def test_an_untouched_buffered_body_keeps_its_length():
    rules = converse(Http((*POST, ("content-length", "3")), [b"abc"]), Http(OK), (BUFFERED, NONE)).rules
    assert "content-length" not in rules.request.set_headers
    assert "content-length" not in rules.request.removed


def test_a_cut_body_is_never_replaced():
    talk = converse(
        Http(POST, [b"abcdef"], seen_bytes=4),
        Http(OK),
        (PARTIAL, NONE),
        route=lambda: Route("a:1", body=[b"new"]),
    )
    (ready,) = talk.of(RequestReady)
    assert (ready.body, ready.body_complete) == (b"abcd", False)
    assert talk.rules.request.passed_on == b"abcdef"


def test_a_buffered_request_with_trailers_but_no_body_is_routed_by_metadata():
    talk = converse(Http(POST, [], trailers=True), Http(OK), (BUFFERED, NONE))
    assert talk.rules.metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.1:8000"


@pytest.mark.parametrize("mode", [STREAMED, NONE])
def test_where_no_body_is_waited_for_the_headers_decide(mode):
    conversation, step = started((mode, NONE), end=False)
    (ready,) = step.events
    assert (ready.body, ready.body_complete, ready.has_body) == (None, False, True)
    assert kinds(conversation.route(Route("a:1", body=[b"ignored"]))) == ["request_headers"]


def test_streamed_chunks_get_an_empty_reply_each_after_the_headers_reply():
    conversation, _ = started((STREAMED, NONE), end=False)
    assert conversation.receive(message("request_body", body=b"early")).replies == []
    empty = envoy.ProcessingResponse(request_body=envoy.BodyResponse())
    assert replies(conversation.route(ROUTE))[1:] == [empty]
    assert replies(conversation.receive(message("request_body", body=b"x", end=True)).replies) == [empty]


# --- what the route says -------------------------------------------------------------------------------------------


def test_only_changes_are_sent_and_what_clients_may_not_say_is_removed():
    hostile = (
        ("x-gateway-destination-endpoint", "6.6.6.6:80"),
        ("X-Prefiller-Host-Port", "6.6.6.6:81"),
        ("x-llm-d-slo-ttft-ms", "1"),
        ("x-slo-tpot-ms", "1"),
        ("x-data-parallel-host-port", "6.6.6.6:82"),
        ("x-gateway-inference-objective", "boss"),
    )
    talk = converse(
        Http((*POST, *hostile, ("x-mine", "kept"))),
        Http(OK),
        route=lambda: Route("10.0.0.1:8000", {"X-Data-Parallel-Host-Port": "10.0.0.2:8001"}, ["X-Other", "x-other"]),
    )
    assert talk.rules.request.set_headers == {
        "x-gateway-destination-endpoint": "10.0.0.1:8000",
        "x-data-parallel-host-port": "10.0.0.2:8001",
    }
    assert talk.rules.request.removed == {
        "x-prefiller-host-port",
        "x-llm-d-slo-ttft-ms",
        "x-slo-tpot-ms",
        "x-gateway-inference-objective",
        "x-other",
    }
    assert talk.rules.request.clear_route_cache


def test_header_and_metadata_name_the_same_destination_whatever_the_owner_sets():
    destination = "[fd00::10]:8000,10.0.0.2:8000"
    route = Route(destination, {"x-gateway-destination-endpoint": "elsewhere", "Content-Length": "5"})
    talk = converse(Http(POST, [b"x"]), Http(OK), route=lambda: route)
    assert talk.rules.request.set_headers == {"x-gateway-destination-endpoint": destination}
    assert talk.rules.metadata == {"envoy.lb": {"x-gateway-destination-endpoint": destination}}


def test_scores_go_into_the_metadata():
    route = Route("a:1", scores={"a:1": 0.75, "b:1": 0.0, "c:1": float("nan")})
    metadata = converse(Http(POST), Http(OK), route=lambda: route).rules.metadata
    assert metadata["envoy.lb"]["x-gateway-destination-endpoint-scores"] == {"a:1": 0.75, "b:1": 0.0}


def test_values_that_are_no_ascii_are_sent_as_utf8():
    talk = converse(Http(POST), Http(OK), route=lambda: Route("a:1", {"x-model": "模型\ud800"}))
    assert talk.rules.request.set_headers["x-model"] == "模型?"


def test_more_headers_than_envoy_takes_are_refused():
    conversation, _ = started()
    with pytest.raises(ValueError, match="100"):
        conversation.route(Route("a:1", {f"x-{i}": "" for i in range(100)}))


# --- what the request says -----------------------------------------------------------------------------------------


def test_a_header_value_is_its_raw_value_if_there_is_one():
    proto = envoy.ProcessingRequest()
    proto.request_headers.end_of_stream = True
    given = (("plain", b""), ("", b"raw"), ("plain", b"raw"), ("", "é".encode()), ("", b"\xe9\xff"))
    for number, (value, raw) in enumerate(given):
        proto.request_headers.headers.headers.add(key=f"X-{number}", value=value, raw_value=raw)
    (ready,) = Conversation().receive(proto.SerializeToString()).events
    assert [ready.headers.get(f"x-{number}") for number in range(5)] == ["plain", "raw", "raw", "é", "éÿ"]


def test_of_a_header_that_is_there_twice_the_last_value_counts():
    data = message("request_headers", pairs=(*POST, ("X-Tenant", "a"), ("x-tenant", "b")), end=True)
    (ready,) = Conversation().receive(data).events
    assert ready.headers.get("x-tenant") == "b"


HINT = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"


@pytest.mark.parametrize(
    ("metadata", "subset"),
    [
        ({}, None),
        ({HINT: {}}, None),
        ({HINT: {"other": "x"}}, None),
        ({"other": {KEY: "x"}}, None),
        ({HINT: {KEY: ["10.0.0.1", "10.0.0.2:8000"]}}, ("10.0.0.1", "10.0.0.2:8000")),
        ({HINT: {KEY: ["10.0.0.1, 10.0.0.2", "[fd00::1]:80", ""]}}, ("10.0.0.1", "10.0.0.2", "[fd00::1]:80")),
        ({HINT: {KEY: "10.0.0.1,10.0.0.2"}}, ("10.0.0.1", "10.0.0.2")),
        ({HINT: {KEY: ["10.0.0.1", 7, None]}}, ("10.0.0.1",)),
        ({HINT: {KEY: []}}, ()),
        ({HINT: {KEY: ""}}, ()),
        ({HINT: {KEY: 7}}, ()),
        ({HINT: {KEY: None}}, ()),
        ({HINT: {KEY: {"a": "10.0.0.1"}}}, ()),
    ],
)
def test_the_subset_hint_allows_nothing_when_it_cannot_be_read(metadata, subset):
    (ready,) = Conversation().receive(message("request_headers", end=True, metadata=metadata)).events
    assert ready.subset == subset


def test_the_last_subset_hint_of_the_request_counts():
    conversation = Conversation()
    conversation.receive(message("request_headers", metadata={HINT: {KEY: ["a"]}}))
    conversation.receive(message("request_body", body=b"x", metadata={HINT: {KEY: ["b"]}}))
    (ready,) = conversation.receive(message("request_body", end=True)).events
    assert ready.subset == ("b",)


@pytest.mark.parametrize("mode", [FDS, BUFFERED, PARTIAL])
def test_a_body_over_the_cap_is_reported_once_and_can_be_rejected(mode):
    conversation, _ = started((mode, FDS), end=False, limits=Limits(max_request_body_bytes=10))
    (event,) = conversation.receive(message("request_body", body=b"x" * 11)).events
    assert event == BodyTooLarge(event.headers, 10)
    assert event.headers.get(":method") == "POST"
    if mode is FDS:
        assert silent(conversation.receive(message("request_body", body=b"x" * 11, end=True)))
    with pytest.raises(RuntimeError):
        conversation.route(ROUTE)
    assert kinds(conversation.reject(Rejection(413, b"{}"))) == ["immediate_response"]
    assert conversation.closed() == [Ended(EndCause.REJECTED)]


def test_a_body_of_exactly_the_cap_passes():
    conversation, _ = started(end=False, limits=Limits(max_request_body_bytes=10))
    (event,) = conversation.receive(message("request_body", body=b"x" * 10, end=True)).events
    assert isinstance(event, RequestReady)


def test_a_tunnel_cannot_fill_the_memory_while_it_waits():
    conversation, _ = started(pairs=((":method", "CONNECT"),), end=False, limits=Limits(max_request_body_bytes=10))
    assert conversation.receive(message("request_body", body=b"x" * 6)).events == []
    (event,) = conversation.receive(message("request_body", body=b"x" * 6)).events
    assert isinstance(event, BodyTooLarge)
    assert silent(conversation.receive(message("request_body", body=b"x" * 6)))
    assert kinds(conversation.reject(Rejection(413, b"{}"))) == ["immediate_response"]


# --- rejections ----------------------------------------------------------------------------------------------------


def rejection_of(conversation, rejection):
    (reply,) = replies(conversation.reject(rejection))
    return reply.immediate_response


def test_a_rejection_is_json_with_its_reason():
    conversation, _ = started()
    answer = rejection_of(
        conversation,
        Rejection(429, b'{"error":{}}', {"X-Reason": "saturated", "retry-after": "1"}, "rejected_saturated"),
    )
    assert answer.status.code == 429
    assert answer.body == b'{"error":{}}'
    assert answer.details == "rejected_saturated"
    assert not answer.HasField("grpc_status")
    headers = {option.header.key: option for option in answer.headers.set_headers}
    assert {key: option.header.raw_value for key, option in headers.items()} == {
        "x-reason": b"saturated",
        "retry-after": b"1",
        "content-type": b"application/json",
    }
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert all(option.append_action == overwrite for option in headers.values())


def test_a_rejection_may_bring_its_own_content_type():
    conversation, _ = started()
    (option,) = rejection_of(conversation, Rejection(400, b"x", {"Content-Type": "text/plain"})).headers.set_headers
    assert (option.header.key, option.header.raw_value) == ("content-type", b"text/plain")


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto"])
@pytest.mark.parametrize(
    ("status", "grpc"), [(400, 3), (401, 16), (403, 7), (413, 8), (429, 8), (500, 13), (503, 14), (418, 2)]
)
def test_grpc_clients_get_a_grpc_status_and_keep_their_content_type(content_type, status, grpc):
    conversation, _ = started(pairs=(("content-type", content_type),), end=False)
    answer = rejection_of(conversation, Rejection(status, b"{}"))
    assert answer.grpc_status.status == grpc
    assert not answer.headers.set_headers


def test_grpc_web_is_not_grpc():
    conversation, _ = started(pairs=(("content-type", "application/grpc-web"),))
    assert not rejection_of(conversation, Rejection(429, b"{}")).HasField("grpc_status")


def test_after_a_rejection_all_is_silent():
    conversation, _ = started(end=False)
    conversation.receive(message("request_body", body=b"x"))
    assert conversation.reject(Rejection(408, b"{}"))
    assert conversation.finished
    assert silent(conversation.receive(message("request_body", body=b"y", end=True)))
    assert conversation.route(ROUTE) == []
    assert conversation.respond({}) == []
    assert conversation.reject(Rejection(429, b"{}")) == []


@pytest.mark.parametrize("mode", list(BodyMode))
def test_an_eviction_can_break_the_response_off_until_its_end(mode):
    conversation = responding((FDS, mode))
    assert kinds(conversation.reject(Rejection(429, b"{}"))) == ["immediate_response"]
    assert conversation.closed() == [Ended(EndCause.EVICTED)]


def test_an_eviction_takes_the_place_of_a_response_that_is_not_answered_yet():
    conversation = routed()
    conversation.receive(message("response_headers", pairs=OK))
    assert kinds(conversation.reject(Rejection(429, b"{}"))) == ["immediate_response"]


def test_nobody_is_left_to_reject_before_the_first_message_and_after_the_last():
    assert Conversation().reject(Rejection(503, b"{}")) == []
    conversation = responding()
    conversation.receive(message("response_body", end=True))
    assert conversation.reject(Rejection(429, b"{}")) == []


# --- response ------------------------------------------------------------------------------------------------------


def test_the_response_headers_are_answered_by_the_owner_with_what_it_sets():
    conversation = routed()
    metadata = {"envoy.lb": {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}}
    step = conversation.receive(message("response_headers", pairs=OK, metadata=metadata))
    assert step.replies == []
    (event,) = step.events
    assert (event.status, event.served_address, event.end_of_stream) == (200, "10.0.0.2:8000", False)
    (reply,) = replies(conversation.respond({"X-Session-Token": "t"}))
    (option,) = reply.response_headers.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == ("x-session-token", b"t")
    assert not reply.response_headers.response.clear_route_cache


def test_nothing_set_is_an_empty_reply():
    conversation = routed()
    conversation.receive(message("response_headers", pairs=OK))
    assert replies(conversation.respond({})) == [envoy.ProcessingResponse(response_headers=envoy.HeadersResponse())]


@pytest.mark.parametrize(
    ("text", "status"),
    [("200", 200), ("404", 404), ("", None), ("2xx", None), ("٢٠٠", None), ("-20", None), ("9" * 5, None)],
)
def test_a_status_that_is_no_number_is_none(text, status):
    (event,) = routed().receive(message("response_headers", pairs=((":status", text),))).events
    assert event.status == status


@pytest.mark.parametrize(
    "metadata", [None, {"envoy.lb": {}}, {"envoy.lb": {"x-gateway-destination-endpoint-served": 7}}]
)
def test_an_unnamed_server_is_none(metadata):
    (event,) = routed().receive(message("response_headers", pairs=OK, metadata=metadata)).events
    assert event.served_address is None


def test_a_response_of_headers_only_is_complete_with_them():
    conversation = routed()
    step = conversation.receive(message("response_headers", pairs=((":status", "204"),), end=True))
    assert [type(event) for event in step.events] == [ResponseStarted, Ended]
    assert step.events[0].end_of_stream
    assert not conversation.finished
    assert kinds(conversation.respond({})) == ["response_headers"]
    assert conversation.finished


def test_chunks_are_echoed_at_once():
    conversation = responding()
    step = conversation.receive(message("response_body", body=b"data: x\n\n"))
    assert step.events == [ResponseBody(b"data: x\n\n", False)]
    (reply,) = replies(step.replies)
    assert reply.response_body.response.body_mutation.streamed_response.body == b"data: x\n\n"
    step = conversation.receive(message("response_body", end=True))
    assert step.events == [ResponseBody(b"", True), Ended(EndCause.NATURAL)]
    assert conversation.finished


def test_an_owner_who_does_not_observe_hears_only_of_the_end():
    talk = converse(Http(POST, [b"x"]), Http(OK, [b"a", b"b"]), route=lambda: Route("a:1", observe_response=False))
    assert [type(event) for event in talk.events] == [RequestReady, Ended]
    assert talk.rules.response.passed_on == b"ab"


class Upper:
    """Rewrites to upper case, one byte late."""

    held = b""

    def __call__(self, data, last):
        data = (self.held + data).upper()
        self.held = b"" if last else data[-1:]
        return data if last else data[:-1]


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("trailers", [True, False])
def test_what_a_rewriter_holds_back_is_sent_before_the_end(observe, trailers):
    talk = converse(
        Http(POST),
        Http((*OK, ("content-length", "4")), [b"ab", b"cd"], trailers=trailers),
        route=lambda: Route("a:1", rewrite_response=Upper(), observe_response=observe),
    )
    assert talk.rules.response.passed_on == b"ABCD"
    assert talk.rules.response.removed == {"content-length"}


def test_a_rewritten_buffered_response_has_its_new_length():
    talk = converse(
        Http(POST),
        Http((*OK, ("content-length", "2")), [b"ab"]),
        (FDS, BUFFERED),
        route=lambda: Route("a:1", rewrite_response=lambda data, last: data * 3),
    )
    assert talk.rules.response.passed_on == b"ababab"
    assert talk.rules.response.set_headers["content-length"] == "6"
    assert not talk.rules.response.removed


def test_a_rewriter_is_never_given_a_cut_body():
    def rewrite(data, last):
        raise AssertionError

    talk = converse(
        Http(POST),
        Http(OK, [b"abcdef"], seen_bytes=3),
        (FDS, PARTIAL),
        route=lambda: Route("a:1", rewrite_response=rewrite),
    )
    assert talk.rules.response.passed_on == b"abcdef"
    assert talk.of(ResponseBody) == [ResponseBody(b"abc", False)]


# --- how it ends ---------------------------------------------------------------------------------------------------

GATEWAY_ERROR = ((":status", "503"),)


def end_of(conversation, **how):
    (event,) = conversation.closed(**how)
    assert conversation.closed() == []
    return event.cause


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param(Conversation, id="before the first message"),
        pytest.param(lambda: started(end=False)[0], id="in the request"),
        pytest.param(lambda: started()[0], id="while deciding"),
        pytest.param(routed, id="before the response"),
        pytest.param(lambda: routed((FDS, STREAMED)), id="before a streamed response"),
        pytest.param(responding, id="in the response"),
        pytest.param(lambda: responding((FDS, STREAMED)), id="in a streamed response"),
        pytest.param(lambda: responding((FDS, BUFFERED)), id="in a buffered response"),
    ],
)
def test_an_end_before_the_end_means_that_the_client_is_gone(conversation):
    assert end_of(conversation()) is EndCause.CLIENT_GONE


@pytest.mark.parametrize("modes", [(FDS, FDS), (FDS, NONE)])
@pytest.mark.parametrize("make", [routed, responding])
def test_a_broken_transport_says_nothing(make, modes):
    assert end_of(make(modes), broken=True) is EndCause.LOST


def with_cut_body():
    conversation = responding((FDS, PARTIAL))
    conversation.receive(message("response_body", body=b"abc"))
    return conversation


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param(lambda: responding((FDS, NONE)), id="body not shown"),
        pytest.param(lambda: routed((FDS, NONE)), id="response not shown"),
        pytest.param(with_cut_body, id="body cut"),
    ],
)
def test_the_end_of_the_stream_is_the_natural_end_of_what_is_not_shown(conversation):
    assert end_of(conversation()) is EndCause.NATURAL


@pytest.mark.parametrize(
    ("pairs", "cause"),
    [
        (OK, EndCause.NATURAL),
        (((":status", "500"),), EndCause.NATURAL),
        (((":status", "503"), ("x-envoy-upstream-service-time", "1")), EndCause.NATURAL),
        (GATEWAY_ERROR, EndCause.UPSTREAM_ERROR),
        (((":status", "504"),), EndCause.UPSTREAM_ERROR),
    ],
)
def test_a_gateway_error_of_envoys_own_is_the_servers_failure(pairs, cause):
    conversation = responding(pairs=pairs)
    assert conversation.receive(message("response_body", body=b"x", end=True)).events[-1] == Ended(cause)
    assert end_of(responding((FDS, NONE), pairs=pairs)) is cause


def test_trailers_end_the_response():
    conversation = responding()
    conversation.receive(message("response_body", body=b"x"))
    step = conversation.receive(message("response_trailers"))
    assert step.events == [Ended(EndCause.NATURAL)]
    assert kinds(step.replies) == ["response_trailers"]
    assert conversation.finished


@pytest.mark.parametrize("end", [True, False])
def test_when_envoy_answers_before_the_decision_the_owner_hears_that_all_is_over(end):
    conversation, _ = started(end=end)
    step = conversation.receive(message("response_headers", pairs=((":status", "408"),)))
    assert step.events == [Ended(EndCause.CLIENT_GONE)]
    assert kinds(step.replies) == ["response_headers"]
    assert conversation.route(ROUTE) == []
    assert conversation.reject(Rejection(503, b"{}")) == []
    step = conversation.receive(message("response_body", body=b"too slow", end=True))
    assert step.events == []
    assert kinds(step.replies) == ["response_body"]
    assert conversation.finished
    assert conversation.closed() == []


# --- the rest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(FDS, FDS), (STREAMED, STREAMED), (BUFFERED, BUFFERED)])
def test_an_observed_exchange_is_told_and_never_answered(modes):
    talk = converse(Http(POST, [b"abc"]), Http(OK, [b"d", b"e"]), modes, observing=True)
    assert isinstance(talk.events[0], RequestReady)
    assert isinstance(talk.events[1], ResponseStarted)
    assert b"".join(event.data for event in talk.of(ResponseBody)) == b"de"
    assert talk.events[-1] == Ended(EndCause.NATURAL)


def test_an_observed_exchange_cannot_be_rejected_and_goes_on():
    conversation, _ = started(observing=True)
    assert conversation.reject(Rejection(429, b"{}")) == []
    (event,) = conversation.receive(message("response_headers", pairs=OK)).events
    assert isinstance(event, ResponseStarted)


def test_a_filter_that_shows_only_responses_is_followed():
    conversation = Conversation()
    step = conversation.receive(message("response_headers", pairs=OK, modes=(NONE, STREAMED)))
    assert [type(event) for event in step.events] == [ResponseStarted]
    assert conversation.respond({})
    assert conversation.receive(message("response_body", body=b"x", end=True)).events[-1] == Ended(EndCause.NATURAL)


@pytest.mark.parametrize("data", [b"\xff", b"", envoy.ProcessingRequest(observability_mode=True).SerializeToString()])
def test_what_cannot_be_read_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        Conversation().receive(data)


def test_a_mode_that_we_do_not_speak_is_a_protocol_error():
    proto = envoy.ProcessingRequest(request_headers=envoy.HttpHeaders())
    proto.protocol_config.request_body_mode = ProcessingMode.GRPC
    with pytest.raises(ProtocolError, match="mode"):
        Conversation().receive(proto.SerializeToString())


def test_too_many_headers_are_a_protocol_error():
    with pytest.raises(ProtocolError, match="headers"):
        started(pairs=[("a", "b")] * 11, limits=Limits(max_headers=10))


@pytest.mark.parametrize(
    "messages",
    [
        ["request_body"],
        ["request_trailers"],
        ["request_headers", "request_headers"],
        ["request_headers", "response_body"],
        ["response_trailers"],
    ],
)
def test_what_cannot_come_in_this_order_is_a_protocol_error(messages):
    conversation = Conversation()
    *before, last = messages
    for name in before:
        conversation.receive(message(name))
    with pytest.raises(ProtocolError):
        conversation.receive(message(last))
    assert conversation.closed(broken=True) == [Ended(EndCause.LOST)]


@pytest.mark.parametrize("mode", [STREAMED, BUFFERED, PARTIAL])
def test_a_response_whose_headers_are_not_shown_passes_untouched(mode):
    conversation = routed((FDS, mode), Route("a:1", rewrite_response=lambda data, end: b"longer than it was"))
    step = conversation.receive(message("response_body", body=b"x", end=True))
    (reply,) = replies(step.replies)
    assert reply == envoy.ProcessingResponse(response_body=envoy.BodyResponse())
    assert step.events[-1] == Ended(EndCause.NATURAL)


def test_an_answer_to_nothing_is_the_owners_mistake():
    conversation, _ = started(end=False)
    with pytest.raises(RuntimeError):
        conversation.route(ROUTE)
    with pytest.raises(RuntimeError):
        conversation.respond({})
    conversation = routed()
    with pytest.raises(RuntimeError):
        conversation.route(ROUTE)


def test_the_table_has_every_mode_and_prints_every_row():
    assert set(table.REQUEST) == set(table.RESPONSE) == set(BodyMode)
    lines = table.as_markdown().splitlines()
    rows = [rows for tables in (table.REQUEST, table.RESPONSE) for rows in tables.values()]
    assert sum(line.startswith("| ") for line in lines) == sum(map(len, rows)) + len(rows)
    assert "| collecting | body, end | hand the request to the owner; `route` replies | done |" in lines
