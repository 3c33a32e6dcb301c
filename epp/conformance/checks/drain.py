"""How the picker leaves."""

import asyncio
import os
import signal

from grpc_health.v1 import health_pb2

from epp.conformance.check import Bench, Failed, NotApplicable, expect, must
from epp.conformance.checks._http import ask, events, stream_of
from epp.conformance.checks.health import EXT_PROC, READINESS, expect_status, places
from epp.conformance.http import Kind, Part, Side

Response = health_pb2.HealthCheckResponse


@must
async def a_draining_picker_fails_nobody(bench: Bench) -> None:
    """After SIGTERM readiness is NOT_SERVING and liveness still SERVING, open streams go on to their end, and new
    ones are served until the proxies have noticed."""
    if bench.known.pid is None:
        raise NotApplicable("needs --pid, the target's process on this host, which is then told to end")
    request, response = ask(), stream_of(events({"n": 1}, {"n": 2}))
    async with bench.envoy.stream(request, response) as stream:
        await stream.show(Side.REQUEST, request)
        await stream.send(Side.RESPONSE, Part(Kind.HEADERS, pairs=response.headers))
        os.kill(bench.known.pid, signal.SIGTERM)
        for place in places(bench):
            async with bench.health(place) as connection:
                for _ in range(50):  # a signal takes effect some time after it was sent
                    try:
                        await expect_status(connection, EXT_PROC, Response.NOT_SERVING)
                        break
                    except Failed:
                        await asyncio.sleep(0.02)
                for name in READINESS:
                    await expect_status(connection, name, Response.NOT_SERVING)
                await expect_status(connection, "liveness", Response.SERVING)
        await bench.routed(request, response)
        for chunk in response.chunks or ():
            await stream.send(Side.RESPONSE, Part(Kind.BODY, body=chunk))
        await stream.send(Side.RESPONSE, Part(Kind.BODY, True))
        await stream.answered(Side.RESPONSE)
        outcome = await stream.finish()
        expect(outcome.rules.response.passed_on == response.body, "The open stream's response was changed.")
