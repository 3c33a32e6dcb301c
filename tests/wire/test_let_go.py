"""When the conversation lets its owner end the stream early: only where Envoy keeps what we have not answered."""

import itertools

import pytest
from envoy_messages import request_body, request_headers, response_body, response_headers, response_trailers

from epp.endings import EndCause
from epp.wire.conversation import Conversation
from epp.wire.events import BodyMode, Ended, Route

HEAD = {":method": "POST", ":path": "/v1/completions"}
ROUTE = Route("10.0.0.1:8000")
MODES = list(itertools.product(BodyMode, BodyMode))


def exchange(modes, route=ROUTE):
    """An exchange, message by message: a conversation, and the step that brings the next."""
    conversation = Conversation()
    request = [request_headers(HEAD, modes=modes), request_body(b"{}")]
    if modes[0] is BodyMode.NONE:
        request.pop()
    for data in request:
        conversation.receive(data)
        if conversation._ready is not None:
            conversation.route(route)
    yield conversation
    conversation.receive(response_headers(200))
    yield conversation
    conversation.respond({})
    yield conversation
    if modes[1] is not BodyMode.NONE:
        conversation.receive(response_body(b"first"))
        yield conversation


@pytest.mark.parametrize("modes", MODES, ids=lambda pair: "-".join(mode.name for mode in pair))
def test_a_response_is_let_go_only_where_envoy_keeps_it(modes):
    may = [conversation.let_go() for conversation in exchange(modes)]
    # Once its headers are answered. After the first True the others follow a stream that has ended.
    assert any(may) is (modes[1] is BodyMode.STREAMED)
    assert not any(may[:2])


def test_after_it_was_let_go_nothing_is_said_or_told():
    *_, conversation = exchange((BodyMode.BUFFERED, BodyMode.STREAMED))
    assert conversation.let_go()
    assert conversation.finished
    step = conversation.receive(response_body(b"more"))
    assert (step.events, step.replies) == ([], [])
    assert conversation.closed(broken=True) == []
    assert not conversation.let_go()


def test_a_request_that_is_still_on_its_way_keeps_the_stream():
    conversation = Conversation()
    conversation.receive(request_headers(HEAD, modes=(BodyMode.STREAMED, BodyMode.STREAMED)))
    conversation.route(ROUTE)
    conversation.receive(request_body(b"{", end=False))
    conversation.receive(response_headers(200))
    conversation.respond({})
    conversation.receive(response_body(b"early"))
    assert not conversation.let_go()
    conversation.receive(request_body(b"}"))
    assert conversation.let_go()


@pytest.mark.parametrize("last", [response_body(b"", end=True), response_trailers()])
def test_what_has_ended_is_not_let_go(last):
    *_, conversation = exchange((BodyMode.BUFFERED, BodyMode.STREAMED))
    assert conversation.receive(last).events[-1] == Ended(EndCause.NATURAL)
    assert not conversation.let_go()


def test_a_response_that_is_rewritten_is_kept():
    route = Route("10.0.0.1:8000", rewrite_response=lambda data, end: data)
    assert not any(c.let_go() for c in exchange((BodyMode.BUFFERED, BodyMode.STREAMED), route))
