"""Every way in which Envoy can be told to show an exchange."""

from itertools import product

from epp.conformance.check import Bench, Check, Level, expect, must, should
from epp.conformance.checks._http import answer, ask, bodyless, completion, events, post, stream_of
from epp.conformance.http import BodyMode, Modes
from epp.conformance.manner import Manner
from epp.conformance.stub import Outcome

FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
TRAILERS = [("x-last", "1")]


def _pair(request: BodyMode, response: BodyMode) -> Check:
    modes = Modes(request, response)

    async def body(bench: Bench) -> None:
        await _whole_exchanges(bench, Manner(modes))

    names = f"{request.name} for requests and {response.name} for responses"
    return Check(
        name=f"modes-{request.name}-{response.name}".lower().replace("_", "-"),
        group="modes",
        level=Level.MUST if (request, response) == (FULL_DUPLEX, FULL_DUPLEX) else Level.SHOULD,
        demand=f"With body modes {names}, exchanges with and without bodies, streams and trailers are routed and "
        "come through.",
        body=body,
    )


# One check for each of the 25 pairs.
PAIRS = [_pair(request, response) for request, response in product(BodyMode, BodyMode)]


@must
async def no_announced_modes_mean_full_duplex(bench: Bench) -> None:
    """An Envoy that announces no modes (before 1.35) is understood to use FULL_DUPLEX_STREAMED both ways."""
    _through(await bench.routed(ask(), stream_of(events({"a": 1})), Manner(announce=False)))


@should
async def observability_mode_gets_no_answer(bench: Bench) -> None:
    """In observability mode Envoy sends copies and takes no answers: the picker is silent, and ends well."""
    outcome = await bench.exchange(ask(), stream_of(events({"a": 1})), Manner(observing=True))
    expect(outcome.rules.replies == 0, "There were replies.")


@should
async def trailers_may_be_hidden(bench: Bench) -> None:
    """With trailers not shown (SKIP), messages that have some come through in the buffered and streamed modes."""
    for mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED, BodyMode.NONE):
        manner = Manner(Modes(mode, mode, trailers=False))
        request = post([completion()], trailers=TRAILERS)
        _through(await bench.routed(request, answer([b"{}"], trailers=TRAILERS), manner))


@should
async def response_headers_may_be_hidden(bench: Bench) -> None:
    """With response headers not shown (SKIP), a response's body is still answered piece by piece."""
    for mode in (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.NONE):
        manner = Manner(Modes(BodyMode.BUFFERED, mode, response_headers=False))
        _through(await bench.routed(ask(), stream_of(events({"a": 1})), manner))


@should
async def a_body_cut_by_the_buffer_is_routed(bench: Bench) -> None:
    """In BUFFERED_PARTIAL a body beyond Envoy's buffer is shown in part: it is routed, not refused, and left
    as it is."""
    request = post(completion("x" * 5_000), buffer_bytes=1_000)
    _through(await bench.routed(request, answer(), Manner(Modes(BodyMode.BUFFERED_PARTIAL, BodyMode.NONE))))


async def _whole_exchanges(bench: Bench, manner: Manner) -> None:
    chunked = post([completion()[:15], completion()[15:]], end_rides_on_data=True)
    stream = stream_of(events({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 1}}))
    _through(await bench.routed(ask(), stream, manner))
    _through(await bench.routed(chunked, answer(), manner))
    _through(await bench.routed(bodyless(), answer(None, status=204), manner))
    _through(await bench.routed(post([completion()], trailers=TRAILERS), answer([b"{}"], trailers=TRAILERS), manner))


def _through(outcome: Outcome) -> None:
    rules = outcome.rules
    for direction in (rules.request, rules.response):
        expect(direction.passed_on == direction.message.body, f"The {direction.side} body was changed.")
    header, metadata = outcome.destination, outcome.metadata_destination
    expect(header is None or header == metadata, f"The header says {header!r}, the metadata {metadata!r}.")
