"""Responses pass by, and are looked at."""

import asyncio
import json
import urllib.error
import urllib.request

from epp.conformance.check import Bench, NotApplicable, expect, must, should
from epp.conformance.checks._http import answer, ask, bodyless, completion, events, post, stream_of
from epp.conformance.http import Kind, Part, Side
from epp.conformance.manner import Manner
from epp.conformance.stub import LB_NAMESPACE

SERVED = "x-gateway-destination-endpoint-served"
SERVED_TOLD = "x-conformance-test-served-endpoint"


@must
async def responses_without_a_body_end_at_their_headers(bench: Bench) -> None:
    """204, 304 and answers to HEAD end with their headers: one reply to those, and nothing more."""
    for request, status in ((ask(), 204), (ask(), 304), (bodyless(method="HEAD"), 200)):
        response = answer(None, [("content-length", "1234")] if status == 200 else [], status=status)
        outcome = await bench.routed(request, response)
        expect(list(outcome.downstream)[: len(response.headers)] == list(response.headers), "Headers were changed.")


@must
async def errors_of_a_model_server_pass(bench: Bench) -> None:
    """A model server's error passes unchanged, whatever it looks like and whatever was asked for."""
    page = b"<html>no JSON at all \xff</html>"
    for status, content_type in ((500, "text/html"), (404, "application/json"), (503, "text/event-stream")):
        outcome = await bench.routed(ask(stream=True), answer(page, status=status, content_type=content_type))
        expect(outcome.rules.response.passed_on == page, "The body was changed.")
        expect(dict(outcome.downstream)[":status"] == str(status), "The status was changed.")


@must
async def empty_responses_pass(bench: Bench) -> None:
    """A response whose body turns out to be empty ends well."""
    for response in (answer([]), stream_of([]), answer([b"", b"x", b""])):
        outcome = await bench.routed(ask(), response)
        expect(outcome.rules.response.passed_on == response.body, "The body was changed.")


@should
async def envoys_own_answer_is_passed(bench: Bench) -> None:
    """Envoy may answer the client before the request's body has come (413, 408): that passes through the picker too."""
    request, response = post([completion()]), answer(b"Payload Too Large", status=413, content_type="text/plain")
    async with bench.envoy.stream(request, response) as stream:
        await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=request.headers))
        await stream.send(Side.REQUEST, Part(Kind.BODY, body=request.body[:5]))
        await stream.show(Side.RESPONSE, response)
        await stream.half_close()
        await stream.until(lambda: stream.over, lambda: "the end of the stream")
        expect(stream.rules.immediate is None, "The picker answered what Envoy had answered already.")
        expect(stream.rules.response.passed_on == response.body, "The body was changed.")


@should
async def the_stream_stays_until_the_response_is_over(bench: Bench) -> None:
    """The picker does not end the stream between request and response: some proxies take that for a failure."""
    for request in (ask(), bodyless(), post(_messages(), "/v1/messages/count_tokens")):
        async with bench.envoy.stream(request, answer()) as stream:
            await stream.show(Side.REQUEST, request)
            await stream.silent(0.05)
            expect(not stream.over, "It ended the stream, or refused the request.")
            await stream.show(Side.RESPONSE, answer())
            await stream.finish()


@should
async def a_test_picker_tells_the_served_endpoint(bench: Bench) -> None:
    """With the verifying plugin, the server that Envoy says it used comes back as a response header."""
    if not bench.known.test_plugins:
        raise NotApplicable("needs --test-plugins, a target that runs the conformance test plugins")
    for endpoint in bench.pool():
        manner = Manner(response_metadata={LB_NAMESPACE: {SERVED: endpoint}})
        outcome = await bench.routed(ask(), answer(), manner)
        told = dict(outcome.downstream).get(SERVED_TOLD)
        expect(told == endpoint, f"It says {told!r} of a response that {endpoint} served.")


@must
async def odd_served_metadata_do_no_harm(bench: Bench) -> None:
    """Served-endpoint metadata of another type, or of a server outside the pool, change nothing for the client."""
    values: list[object] = ["203.0.113.250:4711", "", "nonsense", 42, ["a"], None]
    for value in values:
        outcome = await bench.routed(ask(), answer(), Manner(response_metadata={LB_NAMESPACE: {SERVED: value}}))
        expect(outcome.rules.response.passed_on == outcome.rules.response.message.body, "The body was changed.")


@should
async def usage_is_read_from_a_cut_stream(bench: Bench) -> None:
    """Token counts are read however the event that holds them is cut: each such response adds its tokens to the
    metrics."""
    if bench.known.metrics_url is None:
        raise NotApplicable("needs --metrics, the URL of the target's Prometheus page")
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        "x": "caf\u00e9",
    }
    chunks = events({"choices": [{"text": "a"}]}, usage)
    before = await _output_tokens(bench.known.metrics_url)
    cuts = range(1, len(chunks[1]), 9)
    for cut in cuts:
        head, tail = chunks[1][:cut], chunks[1][cut:]
        await bench.routed(ask(stream=True), stream_of([chunks[0], head, tail, *chunks[2:]]))
    counted = await _output_tokens(bench.known.metrics_url) - before
    expect(counted == 7 * len(cuts), f"{counted:g} output tokens were counted in {len(cuts)} responses of 7.")


async def _output_tokens(url: str) -> float:
    """Sum of output tokens over all series of llm-d's family, under its current or its older name."""
    text = await asyncio.to_thread(_fetch, url)
    for family in ("llm_d_epp_request_output_tokens_sum", "inference_objective_output_tokens_sum"):
        samples = [line.rpartition(" ")[2] for line in text.splitlines() if line.partition("{")[0] == family]
        if samples:
            return sum(map(float, samples))
    return 0.0


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as page:
            return str(page.read().decode("utf-8", "replace"))
    except (urllib.error.URLError, ValueError) as error:
        raise NotApplicable(f"{url} cannot be read: {error}") from error


def _messages() -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
