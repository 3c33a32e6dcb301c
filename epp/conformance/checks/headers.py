"""What becomes of the headers that are not the picker's business."""

import asyncio

from epp.conformance.check import Bench, expect, must, should
from epp.conformance.checks._http import answer, ask, completion, post
from epp.conformance.direction import Direction
from epp.conformance.http import Pairs
from epp.conformance.manner import Manner
from epp.conformance.mutation import value_of

SEVERAL = [("x-several", "one"), ("x-several", "two"), ("x-single", "three"), ("x-several", "four")]
COOKIES = [("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-several", "one"), ("x-several", "two")]


@must
async def every_value_of_a_request_header_is_kept(bench: Bench) -> None:
    """A header with several values keeps them all, in order."""
    outcome = await bench.routed(ask(SEVERAL))
    _kept(SEVERAL, outcome.upstream)


@must
async def every_value_of_a_response_header_is_kept(bench: Bench) -> None:
    """The same for responses: two cookies stay two."""
    outcome = await bench.routed(ask(), answer(headers=COOKIES))
    _kept([(":status", "200"), *COOKIES], outcome.downstream)


@should
async def only_changes_are_sent(bench: Bench) -> None:
    """No header is set to the value that it has: an echo costs bytes, and breaks headers with several values."""
    outcome = await bench.routed(ask(SEVERAL), answer(headers=COOKIES))
    for direction in (outcome.rules.request, outcome.rules.response):
        echoed = _echoed(direction)
        expect(not echoed, f"{direction.side} headers are echoed: {', '.join(sorted(echoed))}.")


@must
async def more_than_a_hundred_headers_are_no_harm(bench: Bench) -> None:
    """A request with 150 headers is routed, and its mutation stays within the 100 that Envoy allows by default."""
    many = [(f"x-header-{i}", str(i)) for i in range(150)]
    outcome = await bench.routed(ask(many), answer(headers=many), Manner(max_headers=400))
    for direction in (outcome.rules.request, outcome.rules.response):
        for mutation in direction.mutations:
            expect(len(mutation.set_headers) <= 100, f"{len(mutation.set_headers)} {direction.side} headers are set.")
    _kept(many, outcome.upstream)


@should
async def a_request_id_is_made_when_there_is_none(bench: Bench) -> None:
    """A request without an `x-request-id` gets one; a client's own is kept."""
    outcome = await bench.routed(ask())
    expect(dict(outcome.upstream).get("x-request-id"), "There is none.")
    outcome = await bench.routed(ask([("x-request-id", "client-1")]))
    expect(dict(outcome.upstream).get("x-request-id") == "client-1", "The client's own was replaced.")


@must
async def equal_request_ids_do_not_meet(bench: Bench) -> None:
    """Streams that share an `x-request-id` are independent of each other."""
    request = ask([("x-request-id", "the-same")])
    outcomes = await asyncio.gather(*(bench.routed(request, answer()) for _ in range(20)))
    whole = all(outcome.rules.request.passed_on == request.body for outcome in outcomes)
    expect(whole, "A body was changed.")


@should
async def protected_headers_are_left_alone(bench: Bench) -> None:
    """No mutation tries what Envoy rejects: pseudo headers, `host`, `x-envoy-…`."""
    outcome = await bench.routed(ask([("x-envoy-something", "x")]), answer(headers=[("x-envoy-something", "x")]))
    rejected = [lapse for lapse in outcome.rules.lapses if "rejected mutation" in lapse]
    expect(not rejected, " ".join(rejected))


@should
async def content_length_is_not_set_where_the_body_is_streamed(bench: Bench) -> None:
    """In FULL_DUPLEX_STREAMED the length is Envoy's business: no content-length is set."""
    outcome = await bench.routed(post(b'{ "model" :  "m",\n "prompt":"x" }'), answer())
    lengths = [lapse for lapse in outcome.rules.lapses if "content-length" in lapse]
    expect(not lengths, " ".join(lengths))


@should
async def nothing_is_left_for_envoy_to_forgive(bench: Bench) -> None:
    """A plain exchange has nothing in it that Envoy would ignore."""
    outcome = await bench.routed(post([completion()[:9], completion()[9:]]), answer([b"a", b"b"]))
    expect(not outcome.rules.lapses, " ".join(outcome.rules.lapses))


def _kept(wanted: Pairs, got: Pairs) -> None:
    names = {name for name, _ in wanted}
    left = [(name, value) for name, value in got if name in names]
    lost = [f"{name}: {value}" for name, value in wanted if (name, value) not in left]
    expect(not lost, f"These are lost: {'; '.join(lost[:5])}.")
    expect(left == list(wanted), "The values came in another order, or there are more of them.")


def _echoed(direction: Direction) -> set[str]:
    before = set(direction.message.headers)
    options = [option for mutation in direction.mutations for option in mutation.set_headers]
    return {o.header.key for o in options if o.header is not None and (o.header.key.lower(), value_of(o)) in before}
