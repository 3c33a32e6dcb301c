"""The ext_proc stream itself: repeated and late messages, ends of every kind, and many at once."""

import asyncio

from epp.conformance.check import Bench, Failed, expect, must, should
from epp.conformance.checks._http import answer, ask, completion, events, post, stream_of
from epp.conformance.connection import OK, UNIMPLEMENTED, GrpcStream
from epp.conformance.http import BodyMode, Kind, Modes, Part, Side
from epp.conformance.manner import Manner
from epp.conformance.stub import METHOD, Stream

A_MOMENT_S = 0.05


@must
async def a_repeated_last_piece_is_ignored(bench: Bench) -> None:
    """Envoy is known to deliver the last piece of a large body twice: the second, empty or not, gets no reply."""
    request, response = ask(), answer()
    for repeated in (b"", request.body):
        async with bench.envoy.stream(request, response) as stream:
            await stream.show(Side.REQUEST, request)
            expect(stream.rules.immediate is None, "The request was refused.")
            await stream.send_message(stream.message(Side.REQUEST, Part(Kind.BODY, True, repeated)))
            await stream.silent(A_MOMENT_S)
            await stream.show(Side.RESPONSE, response)
            outcome = await stream.finish()
            expect(outcome.rules.request.passed_on == request.body, "The body was sent back twice.")


@should
async def late_request_parts_do_no_harm(bench: Bench) -> None:
    """Parts of the request that come when the response has begun break nothing."""
    request, response = post([completion()], trailers=[]), answer([b"a", b"b"])
    async with bench.envoy.stream(request, response) as stream:
        await stream.show(Side.REQUEST, request)
        await stream.send(Side.RESPONSE, Part(Kind.HEADERS, pairs=response.headers))
        await stream.send_message(stream.message(Side.REQUEST, Part(Kind.BODY, True)))
        await stream.send(Side.RESPONSE, Part(Kind.BODY, body=b"ab"))
        await stream.send(Side.RESPONSE, Part(Kind.BODY, True))
        await stream.answered(Side.RESPONSE)
        await stream.finish()


@must
async def a_half_close_ends_the_stream_at_any_phase(bench: Bench) -> None:
    """When Envoy half-closes, in whatever phase, the picker ends the stream with OK and says no more."""
    for phase in range(5):
        async with bench.envoy.stream(ask(), stream_of(events({"a": 1}))) as stream:
            await _reach(stream, phase)
            await stream.half_close()
            await stream.until(lambda: stream.over, lambda: "the end of the stream after its half-close")
            status = stream.grpc.status
            expect(status is None or status.code == OK, f"Phase {phase} ended with {status and status.name}.")
    await bench.routed(ask())


@must
async def resets_at_any_phase_do_no_harm(bench: Bench) -> None:
    """When Envoy resets streams, in whatever phase, other streams of the connection are routed as before."""
    for phase in range(5):
        for _ in range(5):
            async with bench.envoy.stream(ask(), stream_of(events({"a": 1}))) as stream:
                await _reach(stream, phase)
                stream.reset()
    await bench.routed(ask(), answer())


@should
async def an_empty_stream_ends_well(bench: Bench) -> None:
    """A stream on which nothing comes is ended with OK when Envoy half-closes it."""
    async with bench.envoy.stream(ask()) as stream:
        await stream.finish()


@must
async def a_hundred_streams_at_once(bench: Bench) -> None:
    """A hundred exchanges on one connection, all under way at the same time, are all routed and come through."""
    request, response = ask(), stream_of(events({"n": 1}))
    arrived, all_arrived = 0, asyncio.Event()

    async def one() -> None:
        nonlocal arrived
        async with bench.envoy.stream(request, response) as stream:
            await stream.show(Side.REQUEST, request)
            arrived += 1
            if arrived == 100:
                all_arrived.set()
            async with asyncio.timeout(6 * bench.timeout_s):
                await all_arrived.wait()
            await stream.show(Side.RESPONSE, response)
            outcome = await stream.finish()
            expect(outcome.destination, "One was not routed.")
            expect(outcome.rules.response.passed_on == response.body, "A response was changed.")

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(one())


@must
async def garbage_ends_only_its_own_stream(bench: Bench) -> None:
    """A message that is none, or comes where it cannot, ends its stream with an error and touches no other."""
    request = ask()
    async with bench.envoy.stream(request, answer()) as healthy:
        await healthy.show(Side.REQUEST, request)
        for data in (b"\xff\xff\xff\xff", b"no protobuf", b""):
            stream = bench.envoy.connection.stream(METHOD)
            await stream.send(data)
            await _ends_with_an_error(bench, stream)
        await healthy.show(Side.RESPONSE, answer())
        await healthy.finish()


@must
async def a_message_that_announces_4_gib_is_refused(bench: Bench) -> None:
    """A gRPC message that announces 4 GiB ends its stream with an error before they come, and touches no other."""
    request = ask()
    async with bench.envoy.stream(request, answer()) as healthy:
        await healthy.show(Side.REQUEST, request)
        stream = bench.envoy.connection.stream(METHOD)
        await stream.send_raw(b"\0\xff\xff\xff\xff" + bytes(1000))
        await _ends_with_an_error(bench, stream)
        await healthy.show(Side.RESPONSE, answer())
        await healthy.finish()


@must
async def slow_senders_hold_up_nobody(bench: Bench) -> None:
    """A message that stops in its middle holds nobody else up, and messages that come byte by byte are read."""
    stuck = bench.envoy.connection.stream(METHOD)
    await stuck.send_raw(b"\0\0\0\1\0" + bytes(100))
    request, response = ask(), answer()
    outcome = await bench.routed(request, response, Manner(bytewise=True))
    expect(outcome.rules.request.passed_on == request.body, "The body was changed.")
    expect(outcome.rules.response.passed_on == response.body, "The response was changed.")
    stuck.reset()


@must
async def unknown_methods_are_unimplemented(bench: Bench) -> None:
    """A gRPC method that the picker does not have is UNIMPLEMENTED."""
    for method in ("/envoy.service.ext_proc.v3.ExternalProcessor/Nothing", "/some.Service/Process"):
        _, status = await bench.envoy.connection.call(method, b"")
        expect(status.code == UNIMPLEMENTED, f"It is {status.name}.")


@should
async def gzip_messages_are_read(bench: Bench) -> None:
    """gRPC messages that are compressed with gzip are read."""
    request = post(completion("x" * 10_000))
    outcome = await bench.routed(request, answer(), Manner(compress=True))
    expect(outcome.rules.request.passed_on == request.body, "The body was changed.")


@should
async def replies_wait_for_nothing(bench: Bench) -> None:
    """In BUFFERED and STREAMED, headers are answered before the body is sent: Envoy would wait for ever."""
    for mode in (BodyMode.BUFFERED, BodyMode.STREAMED):
        request = ask()
        async with bench.envoy.stream(request, answer(), Manner(Modes(mode, BodyMode.NONE))) as stream:
            await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=request.headers))
            await stream.answered(Side.REQUEST)
            expect(stream.rules.immediate is None, "The request was refused.")


async def _ends_with_an_error(bench: Bench, stream: GrpcStream) -> None:
    try:
        async with asyncio.timeout(bench.timeout_s):
            async for _ in stream:
                raise Failed("Garbage was answered with a message.")
    except TimeoutError:
        raise Failed("A stream with garbage on it is held open.") from None
    expect(stream.status is not None and stream.status.code != OK, "Garbage was taken for a good end.")


async def _reach(stream: Stream, phase: int) -> None:
    """Bring a stream to a phase: nothing sent, headers, part of the body, routed, response under way."""
    request, response = stream.rules.request.message, stream.rules.response.message
    if phase in (1, 2):
        await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=request.headers))
    if phase == 2:
        await stream.send(Side.REQUEST, Part(Kind.BODY, body=request.body[:5]))
    if phase >= 3:
        await stream.show(Side.REQUEST, request)
    if phase == 4:
        await stream.send(Side.RESPONSE, Part(Kind.HEADERS, pairs=response.headers))
        await stream.send(Side.RESPONSE, Part(Kind.BODY, body=response.body[:5]))
