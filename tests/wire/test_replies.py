"""Replies written by hand say what Envoy's own message classes would."""

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.wire import replies
from epp.wire.events import BodyMode, Headers, RequestReady, Route
from epp.wire.names import DESTINATION, STRIPPED_FROM_CLIENTS
from epp.wire.table import Kind, Side

NAMES = st.sampled_from(["x-a", "X-B", "x-c", *STRIPPED_FROM_CLIENTS[:3]])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5) | st.just("v" * 130)


def common(route, mode, is_body, headers, new_body):
    """The answer to a request's headers or body, by Envoy's classes."""
    answer = envoy.CommonResponse(clear_route_cache=True)
    to_set = {DESTINATION: route.destination}
    for name, value in route.set_headers.items():
        to_set.setdefault(name.lower(), value)
    removed = [name for name in STRIPPED_FROM_CLIENTS if name in headers] + [n.lower() for n in route.remove_headers]
    if new_body is not None:
        if is_body:
            answer.body_mutation.body = new_body
        if mode is not BodyMode.BUFFERED:
            removed.append("content-length")
    if new_body is not None and is_body and mode is BodyMode.BUFFERED:
        to_set["content-length"] = str(len(new_body))
    answer.header_mutation.set_headers.extend(
        HeaderValueOption(
            header=HeaderValue(key=name, raw_value=value.encode()),
            append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, value in to_set.items()
    )
    answer.header_mutation.remove_headers.extend(dict.fromkeys(name for name in removed if name not in to_set))
    return answer


@given(
    mode=st.sampled_from([BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED, BodyMode.NONE]),
    kind=st.sampled_from([Kind.HEADERS, Kind.HEADERS_END, Kind.BODY_END]),
    set_headers=st.dictionaries(NAMES, TEXTS, max_size=3),
    removed=st.lists(NAMES, max_size=2),
    sent=st.lists(NAMES.map(str.lower), max_size=2),
    new_body=st.none() | st.binary(max_size=5),
    scores=st.none() | st.dictionaries(st.sampled_from(["a:1", "b:1"]), st.floats()),
)
@settings(max_examples=150, deadline=None)
def test_a_route_is_what_envoys_classes_make_of_it(mode, kind, set_headers, removed, sent, new_body, scores):
    route = Route("a:1,b:1", set_headers, removed, None if new_body is None else [new_body], scores)
    headers = Headers(dict.fromkeys(sent, "x"))
    is_body = kind is Kind.BODY_END
    (data,) = replies.route(route, mode, kind, RequestReady(headers, b"old" if is_body else None, True, True, None))
    expected = envoy.ProcessingResponse()
    part = expected.request_body if is_body else expected.request_headers
    part.response.CopyFrom(common(route, mode, is_body, headers, new_body if is_body else None))
    lb = {DESTINATION: route.destination}
    if scores is not None:
        lb[f"{DESTINATION}-scores"] = {name: s for name, s in scores.items() if abs(s) < float("inf")}
    expected.dynamic_metadata.update({"envoy.lb": lb})
    assert envoy.ProcessingResponse.FromString(data) == expected


@pytest.mark.parametrize("side", Side, ids=str)
@pytest.mark.parametrize("end", [False, True])
def test_a_chunk_of_any_size_is_passed_on_whole(side, end):
    # At each of these some length on the way out needs a byte more.
    for size in (*range(132), *range(16_368, 16_390), 62_000):
        if not size and not end:
            continue
        data = bytes(size)
        reply = envoy.ProcessingResponse.FromString(replies.streamed_chunk(side, data, end))
        assert reply.WhichOneof("response") == f"{side.value}_body"
        streamed = getattr(reply, f"{side.value}_body").response.body_mutation.streamed_response
        assert (streamed.body, streamed.end_of_stream) == (data, end)
        assert [replies.streamed_chunk(side, data, end)] == replies.streamed_body(side, [data], end)
