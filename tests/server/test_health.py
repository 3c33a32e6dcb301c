"""One live state behind every health service name, on the ext_proc port and on its own."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from grpc import aio
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)

from epp.server import health
from epp.server.grpc_transport import ext_proc_server, health_server
from epp.server.health import LIVENESS, READINESS_SERVICES, WORKS, HealthService, HealthState
from epp.server.lean.server import lean_server
from epp.server.listen import TcpAddress
from epp.server.transport import Transport

SERVING, NOT_SERVING, UNKNOWN = (
    HealthCheckResponse.SERVING,
    HealthCheckResponse.NOT_SERVING,
    HealthCheckResponse.SERVICE_UNKNOWN,
)


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def plugins() -> list[str]:
    return []


@pytest.fixture
async def state(reasons: list[str], plugins: list[str]) -> HealthState:
    return HealthState(lambda: [*reasons, *plugins], lambda: plugins)


@pytest.fixture(params=["grpc ext_proc port", "lean ext_proc port", "health port"])
async def channel(request: pytest.FixtureRequest, state: HealthState) -> AsyncIterator[aio.Channel]:
    server: Transport
    address = TcpAddress(0, "--grpc-health-port", "127.0.0.1")
    if request.param == "health port":
        server = health_server(state, [address])
    else:
        make = lean_server if request.param == "lean ext_proc port" else ext_proc_server
        server = make(lambda stream: pytest.fail("no stream expected"), [address], state)
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
    await server.stop()


async def check(channel: aio.Channel, service: str) -> int:
    call = channel.unary_unary(
        "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )
    return (await call(HealthCheckRequest(service=service))).status


async def statuses(channel: aio.Channel) -> dict[str, int]:
    call = channel.unary_unary(
        "/grpc.health.v1.Health/List", HealthListRequest.SerializeToString, HealthListResponse.FromString
    )
    return {name: response.status for name, response in (await call(HealthListRequest())).statuses.items()}


async def test_every_name_that_proxies_and_probes_use_is_answered(channel: aio.Channel) -> None:
    for service in ("", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"):
        assert await check(channel, service) == SERVING
    assert set(await statuses(channel)) == {*READINESS_SERVICES, WORKS, LIVENESS}
    assert set((await statuses(channel)).values()) == {SERVING}


async def test_an_unknown_name_is_a_status_and_no_error(channel: aio.Channel) -> None:
    assert await check(channel, "somebody.else") == UNKNOWN


async def test_an_empty_pool_and_draining_leave_what_charts_restart_by_serving(
    channel: aio.Channel, state: HealthState, reasons: list[str]
) -> None:
    """With one replica llm-d's chart probes liveness by `inference-extension`."""
    expected = dict.fromkeys(READINESS_SERVICES, NOT_SERVING) | {WORKS: SERVING, LIVENESS: SERVING}
    reasons.append("no endpoints yet")
    assert await statuses(channel) == expected
    reasons.clear()
    assert await check(channel, "readiness") == SERVING
    state.start_draining()
    assert await statuses(channel) == expected


async def test_a_plugin_that_does_not_work_leaves_liveness_alone_serving(
    channel: aio.Channel, plugins: list[str]
) -> None:
    plugins.append("tokens: the tokenizer is not there")
    assert await statuses(channel) == dict.fromkeys((*READINESS_SERVICES, WORKS), NOT_SERVING) | {LIVENESS: SERVING}


async def test_a_watch_tells_each_change_and_ends_when_the_process_stops(
    channel: aio.Channel, state: HealthState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WATCH_INTERVAL_S", 3600)  # it is woken, and does not find out by looking again
    call = channel.unary_stream(
        "/grpc.health.v1.Health/Watch", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
    )(HealthCheckRequest(service=""))
    assert (await call.read()).status == SERVING
    state.start_draining()
    assert (await asyncio.wait_for(call.read(), 60)).status == NOT_SERVING
    state.start_stopping()
    assert await asyncio.wait_for(call.read(), 60) is aio.EOF


async def test_a_watch_misses_no_change_that_comes_while_its_answer_is_written(
    state: HealthState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WATCH_INTERVAL_S", 3600)
    answers = HealthService(state).changes("")
    assert (await anext(answers)).status == SERVING
    state.start_draining()  # `anext` is not asked yet: the watcher is still busy with what it has told
    assert (await asyncio.wait_for(anext(answers), 60)).status == NOT_SERVING
    state.start_stopping()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(answers), 60)
