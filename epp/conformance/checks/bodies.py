"""Bodies come through: every byte, in order, whatever their size and however they are cut."""

from collections.abc import Sequence

from epp.conformance.check import Bench, NotApplicable, expect, must, should
from epp.conformance.checks._http import answer, ask, completion, events, post, stream_of
from epp.conformance.http import BodyMode, HttpMessage, Kind, Modes, Part, Side
from epp.conformance.manner import Manner
from epp.conformance.stub import Outcome

# Envoy's pieces are at most its connection buffer: 1 MiB by default, often set to 32 KiB.
ENVOY_PIECE_BYTES = 2**20
# Proxies beside Envoy take no more in one message.
SMALLEST_CAP_BYTES = 64 * 1024
# Pickers of llm-d's family cut at this size.
USUAL_PIECE_BYTES = 62_000

ODD_JSON = (
    b'{ "z":1.0,\t"model" : "m", "a": 12345678901234567890, "a":"\\u003c<\\/", "prompt":"h\\u00e9 h\xc3\xa9" }\r\n'
)


@must
async def bodies_are_not_rewritten(bench: Bench) -> None:
    """A body comes back as the client wrote it: spaces, order and doubles of keys, escapes, long numbers."""
    outcome = await bench.routed(post(ODD_JSON))
    expect(outcome.rules.request.passed_on == ODD_JSON, "The bytes were changed.")


@must
async def bodies_of_300_kb_pass(bench: Bench) -> None:
    """300 KB pass, each way."""
    await _passes(bench, 300_000)


@must
async def bodies_of_5_mb_pass(bench: Bench) -> None:
    """5 MB pass, each way."""
    await _passes(bench, 5_000_000)


@should
async def bodies_of_20_mb_pass(bench: Bench) -> None:
    """20 MB pass as a request."""
    limit = bench.known.max_body_bytes
    if limit is not None and limit < 20_000_000:
        raise NotApplicable("needs a target that takes bodies of 20 MB")
    _unchanged(await bench.routed(_big(20_000_000)))


@must
async def multiples_of_the_piece_size_pass(bench: Bench) -> None:
    """Bodies of 1, 2 and 20 times 62,000 bytes, and one more or less, end exactly once and have no empty piece."""
    for times in (1, 2, 20):
        for extra in (-1, 0, 1):
            outcome = await bench.routed(_big(times * USUAL_PIECE_BYTES + extra))
            _unchanged(outcome)
            pieces = outcome.rules.request.pieces
            expect(0 not in pieces[:-1] and len(pieces) > 0, "There is an empty piece before the last.")


@should
async def pieces_stay_below_64_kib(bench: Bench) -> None:
    """No piece that is sent back is larger than 64 KiB, which some proxies take at most."""
    outcome = await bench.routed(_big(1_000_000))
    largest = max(outcome.rules.request.pieces, default=0)
    expect(largest <= SMALLEST_CAP_BYTES, f"The largest has {largest} bytes.")


@must
async def any_fragmentation_passes(bench: Bench) -> None:
    """However Envoy cuts a body, even byte by byte, the request is read and sent back whole."""
    body = completion("caf\u00e9")
    for size in (1, 7, len(body)):
        chunks = [body[i : i + size] for i in range(0, len(body), size)]
        for end_rides_on_data in (False, True):
            _unchanged(await bench.routed(post(chunks, end_rides_on_data=end_rides_on_data)))


@must
async def request_trailers_end_a_body(bench: Bench) -> None:
    """Where trailers follow, no piece of the body has an end: the trailers end it, and get their reply last."""
    request = post([completion()[:10], completion()[10:]], trailers=[("x-checksum", "1"), ("x-checksum", "2")])
    outcome = await bench.routed(request, answer())
    _unchanged(outcome)
    expect(list(outcome.rules.request.trailers or ()) == list(request.trailers or ()), "The trailers were changed.")


@must
async def response_trailers_end_a_body(bench: Bench) -> None:
    """The same for responses, streamed or not."""
    for chunks, content_type in ((events({"a": 1}), "text/event-stream"), ([b"{}"], "application/json")):
        response = answer(chunks, content_type=content_type, trailers=[("grpc-status", "0")])
        outcome = await bench.routed(ask(), response)
        _same(outcome.rules.response.passed_on, response.body)
        expect(list(outcome.rules.response.trailers or ()) == [("grpc-status", "0")], "The trailers were changed.")


@must
async def a_streamed_piece_is_passed_on_at_once(bench: Bench) -> None:
    """Each piece of an event stream comes back before the next is sent: tokens are not held up."""
    request, chunks = ask(), events({"n": 1}, {"n": 2}, {"n": 3})
    await _piecewise(bench, request, stream_of(chunks), chunks)


@should
async def a_plain_piece_is_passed_on_at_once(bench: Bench) -> None:
    """The same for any other response: none is kept in the picker's memory."""
    chunks = [b'{"a":', b"1}"]
    await _piecewise(bench, ask(), answer(chunks), chunks)


@should
async def buffered_bodies_pass(bench: Bench) -> None:
    """In BUFFERED a body of 5 MB comes as one message, larger than gRPC's own limit of 4 MiB, and passes."""
    modes = Modes(BodyMode.BUFFERED, BodyMode.STREAMED)
    _unchanged(await bench.routed(_big(5_000_000), answer(), Manner(modes)))


@must
async def bodies_that_are_too_large_get_413(bench: Bench) -> None:
    """A body beyond the target's limit is answered with 413, before all of it has been sent."""
    if bench.known.max_body_bytes is None:
        raise NotApplicable("needs --max-request-body, the largest body that the target takes")
    outcome = await bench.refused(413, _big(bench.known.max_body_bytes + 3 * ENVOY_PIECE_BYTES))
    sent = sum(len(part.body) for part in outcome.rules.request.sent)
    expect(sent <= bench.known.max_body_bytes + 3 * ENVOY_PIECE_BYTES, "It came too late.")


def _big(size: int) -> HttpMessage:
    """A completion of exactly so many bytes, cut as Envoy cuts."""
    empty = completion("")
    body = completion("x" * (size - len(empty)))
    return post([body[i : i + ENVOY_PIECE_BYTES] for i in range(0, size, ENVOY_PIECE_BYTES)])


async def _passes(bench: Bench, size: int) -> None:
    response = answer([b"r" * 50_000] * (size // 50_000))
    outcome = await bench.routed(_big(size), response)
    _unchanged(outcome)
    _same(outcome.rules.response.passed_on, response.body)


async def _piecewise(bench: Bench, request: HttpMessage, response: HttpMessage, chunks: Sequence[bytes]) -> None:
    async with bench.envoy.stream(request, response) as stream:
        await stream.show(Side.REQUEST, request)
        expect(stream.rules.immediate is None, "The request was refused.")
        await stream.send(Side.RESPONSE, Part(Kind.HEADERS, pairs=response.headers))
        passed, so_far = stream.rules.response, 0
        for number, chunk in enumerate(chunks, 1):
            await stream.send(Side.RESPONSE, Part(Kind.BODY, body=chunk))
            so_far += len(chunk)
            await stream.until(
                lambda wanted=so_far: len(passed.forwarded) >= wanted or stream.over,  # type: ignore[misc]
                lambda number=number: f"piece {number} of the response",  # type: ignore[misc]
            )
        await stream.send(Side.RESPONSE, Part(Kind.BODY, True))
        await stream.answered(Side.RESPONSE)
        await stream.finish()
        _same(bytes(passed.forwarded), response.body)


def _unchanged(outcome: Outcome) -> None:
    _same(outcome.rules.request.passed_on, outcome.rules.request.message.body)


def _same(got: bytes, wanted: bytes) -> None:
    expect(len(got) == len(wanted), f"{len(got)} bytes came through instead of {len(wanted)}.")
    expect(got == wanted, "The bytes were changed.")
