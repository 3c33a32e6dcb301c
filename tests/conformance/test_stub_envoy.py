"""The stub Envoy catches what Envoy would not take, and says which rule was broken."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from bad_picker import ADDRESS, DESTINATION, EndStream, Fault, Picker, immediate, route, set_header, streamed
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.conformance.broken import RuleBroken
from epp.conformance.check import Expectations
from epp.conformance.checks._http import answer, bodyless, completion, post
from epp.conformance.connection import Target
from epp.conformance.http import BodyMode, HttpMessage, Modes, Side, parts_of
from epp.conformance.manner import PLAIN, Manner
from epp.conformance.stub import NOTHING, Envoy, Outcome
from epp.conformance.suite import Result, Verdict, chosen, run_one

FULL_DUPLEX, BUFFERED, STREAMED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.STREAMED
IN_TWO = post([completion()[:10], completion()[10:]])
WITH_TRAILERS = post([completion()], trailers=[("x-sum", "1")])


@asynccontextmanager
async def picker_and_envoy(fault: Fault) -> AsyncIterator[Envoy]:
    async with Picker(fault) as port, Envoy(Target.parse(f"127.0.0.1:{port}", tls=False), 1.0) as envoy:
        yield envoy


async def talk(
    fault: Fault, request: HttpMessage = IN_TWO, response: HttpMessage = NOTHING, manner: Manner = PLAIN
) -> Outcome:
    async with picker_and_envoy(fault) as envoy:
        return await envoy.exchange(request, response, manner)


async def checked(fault: Fault, name: str) -> Result:
    (check,) = [check for check in chosen([name]) if check.name == name]
    async with Picker(fault) as port:
        return await run_one(check, Target.parse(f"127.0.0.1:{port}", tls=False), Expectations([ADDRESS]), timeout_s=10)


def on(part: str):
    """Make a fault of a function from the faultless replies to a kind of message; others get them as they are."""

    def decorate(change) -> Fault:
        def fault(talk, message, replies):
            return change(talk, replies) if message.WhichOneof("request") == part else replies

        return fault

    return decorate


def fault(part: str, change) -> Fault:
    return on(part)(change)


def instead(part: str, *replies: pb.ProcessingResponse) -> Fault:
    return on(part)(lambda talk, _: list(replies))


def instead_at_the_end(*replies: pb.ProcessingResponse) -> Fault:
    """These replies in place of the last ones to the request."""
    return on("request_body")(lambda talk, faultless: list(replies) if faultless else [])


def at_the_end(*extra: pb.ProcessingResponse) -> Fault:
    """These replies behind the last ones to the request."""
    return on("request_body")(lambda talk, replies: [*replies, *extra] if replies else replies)


def ending(part: str, code: grpc.StatusCode = grpc.StatusCode.OK) -> Fault:
    def end(talk, replies):
        raise EndStream(code)

    return on(part)(end)


def changed(reply: pb.ProcessingResponse, change) -> pb.ProcessingResponse:
    change(reply)
    return reply


def routed_with(*headers: tuple[str, str]) -> pb.ProcessingResponse:
    reply = route()
    for name, value in headers:
        set_header(reply.request_headers.response.header_mutation, name, value)
    return reply


def replacing() -> pb.ProcessingResponse:
    return changed(route(), lambda reply: setattr(reply.request_headers.response, "status", 1))


def buffered_body(length: str | None) -> pb.ProcessingResponse:
    reply = route("request_body")
    reply.request_body.response.body_mutation.body = b"another"
    if length is not None:
        set_header(reply.request_body.response.header_mutation, "content-length", length)
    return reply


EMPTY_HEADERS = pb.ProcessingResponse(request_headers=pb.HeadersResponse())
EMPTY_BODY = pb.ProcessingResponse(request_body=pb.BodyResponse())
TRAILERS = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
BODY = completion()
BUFFERED_BOTH = Manner(Modes(BUFFERED, BUFFERED))


@pytest.mark.parametrize("request_mode", list(BodyMode))
@pytest.mark.parametrize("response_mode", list(BodyMode))
async def test_a_faultless_picker_breaks_no_rule(request_mode, response_mode):
    manner = Manner(Modes(request_mode, response_mode))
    plain = await talk(lambda talk, message, replies: replies, IN_TWO, answer([b"a", b"b"]), manner)
    assert plain.rules.lapses == (
        ["A header mutation in a request_body reply in STREAMED: the headers have left, nothing is set."] * 3
        if request_mode is STREAMED
        else []
    )
    assert (plain.rules.request.passed_on, plain.rules.response.passed_on) == (IN_TWO.body, b"ab")
    if request_mode in (FULL_DUPLEX, BUFFERED):
        assert plain.destination == plain.metadata_destination == ADDRESS
    await talk(lambda talk, message, replies: replies, WITH_TRAILERS, answer([b"a"], trailers=[("x", "1")]), manner)
    await talk(lambda talk, message, replies: replies, bodyless(), answer(None, status=204), manner)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (at_the_end(EMPTY_HEADERS), "A second request_headers reply"),
        (instead("request_headers", route(), route()), "A second request_headers reply"),
        (fault("request_body", lambda talk, replies: replies[::-1]), "before the request_headers reply"),
        (instead("request_headers", streamed("request_body", b"", False)), "before the request_headers reply"),
        (at_the_end(streamed("request_body", b"", True)), "after the one with end_of_stream"),
        (at_the_end(streamed("request_body", b"more", False)), "after the one with end_of_stream"),
        (instead("request_headers", route(), EMPTY_BODY), "without streamed_response"),
        (at_the_end(TRAILERS), "has sent no request trailers"),
        (at_the_end(pb.ProcessingResponse(response_headers=pb.HeadersResponse())), "has sent no response headers"),
        (at_the_end(pb.ProcessingResponse()), "without any response in it"),
        (instead("request_headers", immediate(503), route()), "after the immediate_response"),
        (instead("request_headers", immediate(503), immediate(503)), "after the immediate_response"),
        (instead("request_headers", immediate(0)), "HTTP status 0"),
        (instead("request_headers", replacing()), "CONTINUE_AND_REPLACE is not allowed"),
        (instead("request_headers", routed_with(*((f"x-{i}", "") for i in range(101)))), "sets 102 headers"),
        (instead("request_headers", routed_with(*((f"x-{i}", "") for i in range(98)))), "After the mutation there are"),
        (instead("request_headers", routed_with(("x y", ""))), "no header name"),
        (instead("request_headers", routed_with(("x", "a\r\nb"))), "line end or NUL"),
        (fault("request_body", lambda talk, replies: replies[:1]), "in vain for the end of the request body"),
        (instead("request_body"), "in vain for the reply to request headers"),
        (ending("request_body"), "ended the stream with 10 bytes|while the reply to request headers was due"),
        (ending("request_headers", grpc.StatusCode.INTERNAL), "gRPC status INTERNAL"),
    ],
)
async def test_faults_of_a_request_in_full_duplex_are_named(fault, sentence):
    with pytest.raises(RuleBroken, match=sentence):
        await talk(fault)


@pytest.mark.parametrize(
    ("shown", "fault", "sentence"),
    [
        (2, instead("request_body", route(), streamed("request_body", b"x", True)), "before Envoy had sent the end"),
        (1, instead("request_headers", route(), streamed("request_body", b"x", False)), "has sent no request body"),
    ],
)
async def test_what_comes_too_early_is_named(shown, fault, sentence):
    async with picker_and_envoy(fault) as envoy, envoy.stream(IN_TWO) as stream:
        for part in parts_of(IN_TWO, Side.REQUEST, Modes())[:shown]:
            await stream.send(Side.REQUEST, part)
        with pytest.raises(RuleBroken, match=sentence):
            await stream.until(lambda: stream.over, lambda: "a fault")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            instead("request_trailers", route(), streamed("request_body", BODY, True), TRAILERS),
            "ends with its trailers",
        ),
        (instead("request_trailers", route(), TRAILERS, streamed("request_body", BODY, False)), "trailers go last"),
        (instead("request_trailers", TRAILERS), "before the request_headers reply"),
        (instead("request_trailers"), "in vain for the reply to request headers"),
        (instead("request_trailers", route(), TRAILERS, TRAILERS), "A second request_trailers reply"),
    ],
)
async def test_faults_with_trailers_are_named(fault, sentence):
    with pytest.raises(RuleBroken, match=sentence):
        await talk(fault, WITH_TRAILERS)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (instead("request_headers"), "in vain for the reply to request headers"),
        (instead("request_body", streamed("request_body", BODY, True)), "A streamed_response came in mode BUFFERED"),
        (instead("request_body", EMPTY_HEADERS), "A second request_headers reply"),
        (at_the_end(EMPTY_BODY), "where none was due"),
        (instead("request_body", buffered_body(None)), "content-length 50"),
        (instead("request_body", buffered_body("8")), "content-length 8"),
        (instead("request_headers", changed(replacing(), lambda r: None), EMPTY_BODY), "where none was due"),
    ],
)
async def test_faults_in_buffered_mode_are_named(fault, sentence):
    body = b"x" * 50
    with pytest.raises(RuleBroken, match=sentence):
        await talk(fault, post(body), manner=BUFFERED_BOTH)


async def test_a_true_length_of_a_new_body_is_no_fault():
    outcome = await talk(instead("request_body", buffered_body("7")), post(BODY), manner=BUFFERED_BOTH)
    assert outcome.rules.request.passed_on == b"another"
    assert dict(outcome.upstream)["content-length"] == "7"


async def test_a_replaced_request_has_no_body_to_be_shown():
    outcome = await talk(instead("request_headers", replacing()), post(BODY), manner=BUFFERED_BOTH)
    assert outcome.rules.request.passed_on == b""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (ending("response_body"), "while the end of the response body was due"),
        (instead("response_body", streamed("response_body", b"a", False)), "in vain for the end of the response body"),
        (instead("response_body", pb.ProcessingResponse(response_body=pb.BodyResponse())), "without streamed_response"),
    ],
)
async def test_faults_of_a_response_are_named(fault, sentence):
    with pytest.raises(RuleBroken, match=sentence):
        await talk(fault, IN_TWO, answer([b"a"]))


async def test_a_stream_that_ends_between_request_and_response_leaves_the_response_alone():
    def end_after(talk, replies):
        talk.over = bool(replies)
        return replies

    target = fault("request_body", end_after)
    async with picker_and_envoy(target) as envoy, envoy.stream(IN_TWO, answer([b"a"])) as stream:
        await stream.show(Side.REQUEST, IN_TWO)
        await stream.until(lambda: stream.over, lambda: "the end of the stream")
        outcome = await stream.finish()
    assert (outcome.destination, outcome.rules.response.passed_on) == (ADDRESS, b"a")


async def test_replies_in_observability_mode_are_named():
    with pytest.raises(RuleBroken, match="observability mode"):
        await talk(lambda talk, message, replies: replies, IN_TWO, answer(), replace(PLAIN, observing=True))


def echo_all(talk, replies):
    for header in talk.headers.headers:
        for reply in replies[:1]:
            set_header(reply.request_headers.response.header_mutation, header.key, header.raw_value.decode())
    return replies


def says_another_address(talk, replies):
    for reply in replies[:1]:
        reply.dynamic_metadata.update({"envoy.lb": {DESTINATION: "192.0.2.9:1"}})
    return replies


@pytest.mark.parametrize(
    ("fault", "check", "sentence"),
    [
        (fault("request_body", echo_all), "every-value-of-a-request-header-is-kept", r"These are lost: x-several: one"),
        (fault("request_body", echo_all), "only-changes-are-sent", r"request headers are echoed: .*:path"),
        (fault("request_body", echo_all), "protected-headers-are-left-alone", "':method': Envoy ignores it"),
        (
            instead_at_the_end(routed_with(("content-length", "35")), streamed("request_body", b"x" * 35, True)),
            "content-length-is-not-set-where-the-body-is-streamed",
            "content-length is set on a request in FULL_DUPLEX_STREAMED",
        ),
        (fault("request_body", says_another_address), "header-and-metadata-are-equal", "the metadata '192.0.2.9:1'"),
        (
            instead_at_the_end(route(), streamed("request_body", b"{}", True)),
            "bodies-are-not-rewritten",
            "The bytes were changed",
        ),
        (instead_at_the_end(immediate(500)), "malformed-json-gets-400", "The answer was 500; it must be 400"),
        (lambda talk, message, replies: replies, "malformed-json-gets-400", "was routed; the answer must be 400"),
        (lambda talk, message, replies: replies, "an-empty-list-allows-nothing", "was routed; the answer must be 503"),
        (lambda talk, message, replies: replies, "readiness-names-are-serving", "is UNIMPLEMENTED"),
        (lambda talk, message, replies: replies, "a-repeated-last-piece-is-ignored", "A second request_headers reply"),
    ],
)
async def test_checks_say_what_they_saw(fault, check, sentence):
    result = await checked(fault, check)
    assert result.verdict is Verdict.FAILED
    assert re.search(sentence, result.sentence)


async def test_a_picker_that_is_not_there_is_a_failure_and_no_crash():
    (check,) = chosen(["header-and-metadata-are-equal"])
    async with Picker() as port:
        pass
    result = await run_one(check, Target.parse(f"127.0.0.1:{port}", tls=False), Expectations(), timeout_s=10)
    assert result.verdict is Verdict.FAILED
    assert "cannot connect" in result.sentence


@pytest.mark.parametrize("mode", [BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_buffered_messages_are_shown_whole(mode):
    kinds = [(p.kind, p.end, p.body) for p in parts_of(IN_TWO, Side.REQUEST, Modes(mode, mode))]
    assert kinds == [("headers", False, b""), ("body", True, IN_TWO.body)]


def test_streamed_messages_end_as_http_1_or_http_2_ends_them():
    ends = [(p.body, p.end) for p in parts_of(post([b"a", b"b"]), Side.REQUEST, Modes())][1:]
    assert ends == [(b"a", False), (b"b", False), (b"", True)]
    ends = [(p.body, p.end) for p in parts_of(post([b"a", b"b"], end_rides_on_data=True), Side.REQUEST, Modes())][1:]
    assert ends == [(b"a", False), (b"b", True)]
