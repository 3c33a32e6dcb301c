"""What the picker answers itself."""

import json
from contextlib import AsyncExitStack

from epp.conformance.check import Bench, Failed, NotApplicable, expect, must, should
from epp.conformance.checks._http import ask, bodyless, completion, post
from epp.conformance.checks.destination import STEERING
from epp.conformance.checks.subset_hint import hint
from epp.conformance.http import BodyMode, Modes, Side
from epp.conformance.manner import Manner
from epp.conformance.mutation import value_of
from epp.conformance.stub import Outcome

REASON = "x-llm-d-request-dropped-reason"
OBJECTIVE = "x-llm-d-inference-objective"
CANARY = "conformance-canary-3f9a"
MALFORMED = post(b'{"model": "m", "prompt": "' + CANARY.encode())


@must
async def malformed_json_gets_400(bench: Bench) -> None:
    """A body that is not JSON, on a path whose API needs it, is answered with 400; the stream does not break."""
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
        for body in (MALFORMED.body, b"\xff\xfe", b"{} trailing"):
            await bench.refused(400, post(body, path))


@should
async def json_that_is_no_object_gets_400(bench: Bench) -> None:
    """JSON other than an object is answered with 400."""
    for body in (b"[]", b'"text"', b"42", b"null"):
        await bench.refused(400, post(body))


@should
async def an_empty_post_gets_400(bench: Bench) -> None:
    """A POST without a body, on a path whose API needs one, is answered with 400 and not waited for."""
    await bench.refused(400, bodyless("/v1/completions", [("content-length", "0")], method="POST"))
    await bench.refused(400, post([]))


@should
async def deep_json_does_no_harm(bench: Bench) -> None:
    """Deeply nested JSON and huge numbers are routed or answered with 400; the stream does not break."""
    for body in (b"[" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"max_tokens":1' + b"0" * 5_000 + b"}"):
        outcome = await bench.exchange(post(body))
        expect(outcome.answered in (None, 400), f"It was answered with {outcome.answered}.")


@must
async def nobody_to_send_it_to_is_503_with_a_reason(bench: Bench) -> None:
    """Without any endpoint left the answer is 503, and says `rejected-no-endpoints` for machines."""
    outcome = await bench.refused(503, ask(), hint([]))
    expect(_header(outcome, REASON) == "rejected-no-endpoints", f"The reason is {_header(outcome, REASON)!r}.")


@should
async def bodyless_refusals_are_503_too(bench: Bench) -> None:
    """The same for a request without a body: 503 with its reason, never 500."""
    outcome = await bench.refused(503, bodyless(), hint([]))
    expect(_header(outcome, REASON) == "rejected-no-endpoints", f"The reason is {_header(outcome, REASON)!r}.")


@should
async def filters_that_leave_nobody_are_429(bench: Bench) -> None:
    """When the filters drain all candidates the answer is 429, and says `rejected-saturated`."""
    if not bench.known.test_plugins:
        raise NotApplicable("needs --test-plugins, a target that runs the conformance test plugins")
    outcome = await bench.refused(429, ask([(STEERING, "203.0.113.250")]))
    expect(_header(outcome, REASON) == "rejected-saturated", f"The reason is {_header(outcome, REASON)!r}.")


@must
async def sheddable_requests_get_429_when_the_pool_is_full(bench: Bench) -> None:
    """A request of negative priority is answered with 429 while the pool is saturated, and routed when it is not."""
    objective = bench.known.sheddable_objective
    if objective is None:
        raise NotApplicable("needs --sheddable-objective, an objective of negative priority")
    sheddable = ask([(OBJECTIVE, objective)])
    await bench.routed(sheddable)
    async with AsyncExitStack() as held:
        for _ in range(bench.known.saturating_streams):
            stream = await held.enter_async_context(bench.envoy.stream(ask()))
            await stream.show(Side.REQUEST, ask())
        await bench.refused(429, sheddable)
        await bench.routed(ask())
    for _ in range(50):  # the picker has yet to notice the ends
        if (await bench.exchange(sheddable)).answered is None:
            return
    raise Failed("It is still refused when nothing is in flight any more.")


@should
async def refusals_are_json(bench: Bench) -> None:
    """Refusals have a JSON body and say so, whatever their status."""
    for outcome in await _refusals(bench):
        expect(_header(outcome, "content-type") == "application/json", f"{outcome.answered} is not announced as JSON.")
        _json(outcome)


@should
async def refusals_name_a_reason(bench: Bench) -> None:
    """Every refusal has the header `x-llm-d-request-dropped-reason`, for machines."""
    for outcome in await _refusals(bench):
        expect(_header(outcome, REASON), f"{outcome.answered} has none.")


@should
async def openai_clients_get_openai_errors(bench: Bench) -> None:
    """On OpenAI's paths a refusal has OpenAI's shape: `error` with `message`, `type`, `param`, `code`."""
    for outcome in await _refusals(bench):
        error = _json(outcome).get("error")
        expect(isinstance(error, dict) and {"message", "type", "param", "code"} <= set(error), "It has another shape.")
        text = str(error["message"]) if isinstance(error, dict) else ""
        expect(text.startswith("inference error: "), "The message does not begin with `inference error: `, as llm-d's.")


@should
async def anthropic_clients_get_anthropic_errors(bench: Bench) -> None:
    """On Anthropic's paths a refusal has Anthropic's shape: `type` and `error` with `type` and `message`."""
    for outcome in (
        await bench.refused(400, post(MALFORMED.body, "/v1/messages")),
        await bench.refused(503, post(completion(), "/v1/messages"), hint([])),
    ):
        body = _json(outcome)
        error = body.get("error")
        shaped = body.get("type") == "error" and isinstance(error, dict) and {"type", "message"} <= set(error)
        expect(shaped, "It has another shape.")


@should
async def refusals_say_when_to_come_again(bench: Bench) -> None:
    """A 503 has a `retry-after`."""
    retry_after = _header(await bench.refused(503, ask(), hint([])), "retry-after")
    expect(retry_after is not None and retry_after.isdecimal(), f"It is {retry_after!r}.")


@should
async def grpc_clients_get_a_grpc_status(bench: Bench) -> None:
    """A gRPC client is told with a gRPC status: 14 (UNAVAILABLE) when nobody is there."""
    request = post(b"\0\0\0\0\0", "/some.Service/Generate", [("te", "trailers")], content_type="application/grpc")
    outcome = await bench.refused(503, request, hint([]))
    answer = outcome.immediate
    status = answer.grpc_status.status if answer is not None and answer.grpc_status is not None else None
    expect(status == 14, f"It is {status}.")


@should
async def refusals_do_not_quote_the_request(bench: Bench) -> None:
    """Nothing of a prompt is in a refusal, nor in its details for the access log."""
    answer = (await bench.refused(400, MALFORMED)).immediate
    expect(answer is not None and CANARY.encode() not in bytes(answer), "A part of the prompt is in it.")


@should
async def refusals_have_details(bench: Bench) -> None:
    """A refusal has `details`, which Envoy puts into its access log."""
    for outcome in await _refusals(bench):
        expect(outcome.immediate is not None and outcome.immediate.details, f"{outcome.answered} has none.")


@must
async def refusals_come_in_every_mode(bench: Bench) -> None:
    """400 and 503 are answered in the buffered and streamed modes as well, as far as the mode shows the reason."""
    for mode in BodyMode:
        manner = Manner(Modes(mode, BodyMode.NONE), request_metadata=hint([]).request_metadata)
        await bench.refused(503, ask(), manner)
    await bench.refused(400, MALFORMED, Manner(Modes(BodyMode.BUFFERED, BodyMode.NONE)))


async def _refusals(bench: Bench) -> list[Outcome]:
    return [
        await bench.refused(400, MALFORMED),
        await bench.refused(503, ask(), hint([])),
        await bench.refused(503, bodyless(), hint([])),
    ]


def _header(outcome: Outcome, name: str) -> str | None:
    answer = outcome.immediate
    options = answer.headers.set_headers if answer is not None and answer.headers is not None else []
    values = [value_of(o) for o in options if o.header is not None and o.header.key.lower() == name]
    return values[-1] if values else None


def _json(outcome: Outcome) -> dict[str, object]:
    try:
        body = json.loads(outcome.immediate.body if outcome.immediate is not None else b"")
    except ValueError:
        raise Failed(f"The body of {outcome.answered} is not JSON.") from None
    expect(isinstance(body, dict), f"The body of {outcome.answered} is no JSON object.")
    return dict(body)
