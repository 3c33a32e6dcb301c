"""How the picker's process ends while streams are open, and what its clients notice of it."""

import asyncio
import signal
import time
from pathlib import Path

import aiohttp
import grpc
import pytest
from envoy_messages import FULL_DUPLEX, response_body
from grpc import aio
from grpc_health.v1 import health_pb2
from scripted_envoy import LAST, ScriptedStream, connect, streaming
from scripted_server import closed_address
from stack import Stack, eventually

from epp.sim.config import SimConfig
from epp.sim.picker_process import PickerProcess

READINESS = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


def picker(folder: Path, drain_timeout: str) -> PickerProcess:
    flags = ["--endpoints", closed_address(), "--secure-serving=false", "--refresh-metrics-interval", "10s"]
    return PickerProcess(folder, [*flags, "--drain-timeout", drain_timeout])


async def health(port: int, service: str) -> str:
    async with connect(port) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def status_of(process: PickerProcess, path: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(process.metrics_url + path) as response:
        return response.status


async def not_ready(process: PickerProcess) -> bool:
    return await status_of(process, "/readyz") == 503


async def finish(stream: ScriptedStream) -> None:
    await stream.say(response_body(LAST, end=True))
    assert await stream.end() is grpc.StatusCode.OK


async def test_readiness_goes_first_and_running_streams_finish(tmp_path: Path) -> None:
    async with picker(tmp_path, "5s") as process, connect(process.ports["grpc"]) as channel:
        ports = (process.ports["grpc"], process.ports["health"])
        assert {await health(port, service) for port in ports for service in READINESS} == {"SERVING"}
        old = ScriptedStream(channel)
        await streaming(old, FULL_DUPLEX)

        told_s = time.monotonic()
        await process.signal(signal.SIGTERM)
        await eventually(lambda: not_ready(process))
        assert {await health(port, service) for port in ports for service in READINESS} == {"NOT_SERVING"}
        assert {await health(port, "liveness") for port in ports} == {"SERVING"}
        assert await status_of(process, "/healthz") == 200
        new = ScriptedStream(channel)
        await streaming(new, FULL_DUPLEX)  # a proxy that has not yet noticed is still served
        await finish(new)

        await asyncio.sleep(max(0.0, told_s + 5.5 - time.monotonic()))  # the drain is over; the stream is not
        await old.say(response_body(b"data: {}\n\n"))
        await old.hear("response_body")
        await finish(old)
        assert await process.wait() == 0


async def test_without_a_drain_new_streams_are_refused_and_running_ones_finish(tmp_path: Path) -> None:
    async with picker(tmp_path, "0s") as process, connect(process.ports["grpc"]) as channel:
        old = ScriptedStream(channel)
        await streaming(old, FULL_DUPLEX)
        await process.signal(signal.SIGTERM)

        async def refuses() -> bool:
            try:
                return await health(process.ports["grpc"], "") != "SERVING"
            except aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE

        await eventually(refuses)
        assert await health(process.ports["health"], "") == "NOT_SERVING"
        assert await health(process.ports["health"], "liveness") == "SERVING"
        await finish(old)
        assert await process.wait() == 0


@pytest.mark.parametrize(("drain_timeout", "second"), [("0s", signal.SIGINT), ("60s", signal.SIGTERM)])
async def test_a_second_signal_hurries(tmp_path: Path, drain_timeout: str, second: signal.Signals) -> None:
    async with picker(tmp_path, drain_timeout) as process, connect(process.ports["grpc"]) as channel:
        stream = ScriptedStream(channel)
        await streaming(stream, FULL_DUPLEX)
        await process.signal(signal.SIGTERM)
        await eventually(lambda: not_ready(process))
        await process.signal(second)
        assert await stream.end() is not grpc.StatusCode.OK
        assert await process.wait() == 0


@pytest.mark.envoy
@pytest.mark.usefixtures("envoy_binary")
async def test_clients_notice_nothing_of_a_picker_that_is_replaced() -> None:
    """Under load from before the SIGTERM until after the exit, with the recommended bootstrap failing open: requests
    that are routed, that stream and that come when nobody picks any more are all answered, and answered whole."""
    slow = SimConfig(speed=0.5)
    async with Stack([slow, slow], picker_flags=["--drain-timeout", "1s"]) as stack, aiohttp.ClientSession() as client:
        asked = {"model": slow.model, "prompt": "hello", "max_tokens": 30, "stream": True}

        async def ask() -> bool:
            async with client.post(f"{stack.url}/v1/completions", json=asked) as response:
                return response.status == 200 and (await response.read()).rstrip().endswith(b"data: [DONE]")

        async def keep_asking() -> list[bool]:
            return [await ask() for _ in iter(lambda: exited.done(), True)]

        exited = asyncio.get_running_loop().create_future()
        clients = [asyncio.create_task(keep_asking()) for _ in range(8)]
        await asyncio.sleep(0.5)
        assert await stack.picker.terminate() == 0
        await asyncio.sleep(0.5)
        exited.set_result(None)
        answers = [answer for answers in await asyncio.gather(*clients) for answer in answers]
        assert len(answers) > len(clients)
        assert all(answers)
