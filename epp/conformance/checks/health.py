"""The gRPC health service: what proxies and kubelets ask."""

import asyncio
from collections.abc import Sequence

from grpc_health.v1 import health_pb2

from epp.conformance.check import Bench, Failed, NotApplicable, expect, must, should
from epp.conformance.connection import OK, Connection, Target

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
WORKS = "inference-extension"  # says that the process works; whether also that it is ready is left open
READINESS = ("", "readiness", EXT_PROC)
SERVICE = "/grpc.health.v1.Health"

Response = health_pb2.HealthCheckResponse


@must
async def readiness_names_are_serving(bench: Bench) -> None:
    """The empty name, `readiness`, `inference-extension` and the ext_proc service's name are SERVING."""
    async with bench.health(_place(bench)) as connection:
        for name in (*READINESS, WORKS):
            await expect_status(connection, name, Response.SERVING)


@must
async def liveness_is_serving(bench: Bench) -> None:
    """`liveness` is SERVING."""
    async with bench.health(_place(bench)) as connection:
        await expect_status(connection, "liveness", Response.SERVING)


@should
async def unknown_names_are_told_as_a_status(bench: Bench) -> None:
    """A name that nobody knows is SERVICE_UNKNOWN, as a status and not as an error."""
    async with bench.health(_place(bench)) as connection:
        await expect_status(connection, "nobody.knows.this", Response.SERVICE_UNKNOWN)


@should
async def health_is_served_beside_ext_proc(bench: Bench) -> None:
    """The same answers come on ext_proc's own port, where Envoy's active health checks ask."""
    async with bench.health(bench.target) as connection:
        await expect_status(connection, EXT_PROC, Response.SERVING)
        await expect_status(connection, "liveness", Response.SERVING)


@should
async def a_health_port_of_its_own(bench: Bench) -> None:
    """Probes have a plaintext port with health alone: it answers, and has no ext_proc."""
    if bench.known.health is None:
        raise NotApplicable("needs --health, where the health port listens")
    async with bench.health(bench.known.health) as connection:
        await expect_status(connection, "", Response.SERVING)
        _, status = await connection.call(f"/{EXT_PROC}/Process", b"")
        expect(status.code != OK, "ext_proc is served there too.")


@should
async def health_can_be_watched(bench: Bench) -> None:
    """Watch tells the present status at once, and keeps the call open."""
    async with bench.health(_place(bench)) as connection:
        stream = connection.stream(f"{SERVICE}/Watch")
        await stream.send(health_pb2.HealthCheckRequest(service=EXT_PROC).SerializeToString())
        await stream.half_close()
        try:
            async with asyncio.timeout(bench.timeout_s):
                first = Response.FromString(await anext(stream))
        except (TimeoutError, StopAsyncIteration):
            status = stream.status
            raise Failed(f"Nothing came: {status.name if status is not None else 'silence'}.") from None
        expect(first.status == Response.SERVING, f"It is {_named(first.status)}.")
        expect(stream.status is None, "The call was ended.")
        stream.reset()


@should
async def health_can_be_listed(bench: Bench) -> None:
    """List names every service that Check knows."""
    async with bench.health(_place(bench)) as connection:
        messages, status = await connection.call(f"{SERVICE}/List", b"")
        expect(status.code == OK and len(messages) == 1, f"List is {status.name}.")
        statuses = health_pb2.HealthListResponse.FromString(messages[0]).statuses
        missing = {*READINESS, WORKS, "liveness"} - set(statuses)
        expect(not missing, f"These are missing: {', '.join(sorted(repr(name) for name in missing))}.")


async def expect_status(connection: Connection, name: str, wanted: int) -> None:
    request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
    messages, status = await connection.call(f"{SERVICE}/Check", request)
    expect(status.code == OK and len(messages) == 1, f"Check of {name!r} is {status.name}.")
    got = Response.FromString(messages[0]).status
    expect(got == wanted, f"{name!r} is {_named(got)} instead of {_named(wanted)}.")


def places(bench: Bench) -> Sequence[Target]:
    """Where health is to be asked for: on its own port if that is known, and beside ext_proc."""
    return [bench.known.health, bench.target] if bench.known.health is not None else [bench.target]


def _place(bench: Bench) -> Target:
    return places(bench)[0]


def _named(status: int) -> str:
    return Response.ServingStatus.Name(status) if status in Response.ServingStatus.values() else str(status)
