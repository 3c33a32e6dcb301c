"""What the exchange tells the director of a response: the first token, the counts, the end."""

from types import SimpleNamespace

import pytest

from epp.endings import EndCause
from epp.inference.request import Api, Request, Usage
from epp.server.exchange import Exchange, ExchangeOptions
from epp.wire import ext_proc_pb2 as pb
from epp.wire.conversation import Limits

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\n'


class ToyDirector:
    """Routes everything, and remembers what it is told."""

    def __init__(self):
        self.told = []
        self.assignment = SimpleNamespace(
            request=Request(id="r", api=Api.CHAT),
            decision=SimpleNamespace(destination="10.0.0.1:8000"),
            cycle=SimpleNamespace(set_headers={}),
            body=None,
            streamed=False,
        )

    def decide(self, arrival):
        return self.assignment

    def scores(self, assignment):
        return None

    def response_started(self, assignment, status, headers, served):
        assignment.streamed = headers.get("content-type") == "text/event-stream"
        return {}

    def first_token(self, assignment):
        self.told.append("first token")

    def response_body(self, assignment, data):
        self.told.append(len(data))

    def end(self, assignment, cause, usage, token_events=0):
        if not isinstance(self.told[-1], tuple):  # a second end counts nothing
            self.told.append((cause, usage, token_events))


def headers(**pairs):
    return pb.HttpHeaders(
        headers=pb.HeaderMap(headers=[pb.HeaderValue(key=k.replace("_", "-"), value=v) for k, v in pairs.items()])
    )


def told(*chunks, content_type="text/event-stream", **response_headers):
    director = ToyDirector()
    timer = SimpleNamespace(cancel=lambda: None)
    exchange = Exchange(
        SimpleNamespace(), director, ExchangeOptions(Limits()), clock=lambda: 0.0, call_later=lambda *_: timer
    )
    config = pb.ProtocolConfiguration(
        request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.STREAMED
    )
    messages = [
        pb.ProcessingRequest(request_headers=headers(path="/v1/chat/completions"), protocol_config=config),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=b"{}", end_of_stream=True)),
        pb.ProcessingRequest(response_headers=headers(content_type=content_type, **response_headers)),
    ]
    messages += [pb.ProcessingRequest(response_body=pb.HttpBody(body=chunk)) for chunk in chunks]
    messages.append(pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True)))
    for message in messages:
        exchange.receive(message.SerializeToString())
    exchange.closed(cancelled=False)
    return director.told


def test_the_first_token_is_told_once_before_its_bytes():
    *body, (cause, usage, token_events) = told(ROLE, b": ping\n\n", TEXT, TEXT + TEXT, USAGE)
    assert [event for event in body if event != 0] == [
        len(ROLE),
        len(b": ping\n\n"),
        "first token",
        len(TEXT),
        2 * len(TEXT),
        len(USAGE),
    ]
    assert (cause, usage) == (EndCause.NATURAL, Usage(5, 3, None))
    assert token_events == 4


@pytest.mark.parametrize(
    "response", [{"content_type": "application/json"}, {"content_encoding": "gzip"}], ids=["json", "compressed"]
)
def test_of_what_cannot_be_read_as_events_the_first_byte_counts(response):
    assert told(ROLE, TEXT, **response)[0] == "first token"


def test_a_stream_that_only_says_a_role_has_no_first_token():
    assert "first token" not in told(ROLE, b"data: [DONE]\n\n")
