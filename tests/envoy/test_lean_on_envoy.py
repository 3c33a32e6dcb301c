"""The lean transport under the real Envoy, in both bootstraps' modes: bodies whole, streams in order, ends noticed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from stack import Stack, eventually

LEAN = ["--transport", "lean", "--enable-grpc-stream-metrics"]

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[("recommended", False, False), ("gateway", True, False), ("gateway", False, True)],
    ids=["recommended", "gateway over TLS", "gateway over a Unix socket"],
)
async def lean(request: pytest.FixtureRequest, envoy_binary: Path) -> AsyncIterator[Stack]:
    bootstrap, tls, unix_socket = request.param
    async with Stack(pool=2, bootstrap=bootstrap, tls=tls, unix_socket=unix_socket, picker_flags=LEAN) as stack:
        yield stack


def completion(prompt: str, **more: object) -> dict[str, object]:
    return {"model": "llama-3.1-8b", "prompt": prompt, "max_tokens": 5, **more}


@pytest.mark.parametrize("size", [1, 1_000, 70_000, 3_000_000])
async def test_bodies_of_any_size_reach_the_server(lean: Stack, size: int) -> None:
    async with aiohttp.ClientSession() as client:
        response = await client.post(f"{lean.url}/v1/completions", json=completion("x", user="x" * size))
        assert response.status == 200
        assert (await response.json())["usage"]["completion_tokens"] == 5
    await eventually(lean.is_idle)


async def test_a_stream_comes_whole_and_in_order(lean: Stack) -> None:
    async with aiohttp.ClientSession() as client:
        body = completion("count", stream=True, max_tokens=200)
        response = await client.post(f"{lean.url}/v1/completions", json=body)
        lines = [line async for line in response.content if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    texts = [json.loads(line[6:])["choices"] for line in lines[:-1]]
    assert sum(1 for choices in texts if choices and choices[0].get("text")) == 200
    await eventually(lean.is_idle)


async def test_many_at_once_are_all_answered_and_nothing_stays_reserved(lean: Stack) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as client:

        async def ask(i: int) -> int:
            async with client.post(f"{lean.url}/v1/completions", json=completion(f"{i} " * 500)) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(ask(i) for i in range(150)))
    assert statuses == [200] * 150
    await eventually(lean.is_idle)


async def test_a_client_that_leaves_gives_its_reservation_back(lean: Stack) -> None:
    async with aiohttp.ClientSession() as client:
        body = completion("go on", stream=True, max_tokens=100_000)
        response = await client.post(f"{lean.url}/v1/completions", json=body)
        await response.content.readany()
        assert not await lean.is_idle()
        response.close()
    await eventually(lean.is_idle)


async def test_streams_are_counted_and_all_of_them_end(lean: Stack) -> None:
    async with aiohttp.ClientSession() as client:
        await (await client.post(f"{lean.url}/v1/completions", json=completion("x"))).read()

    async def no_stream_is_open() -> bool:
        metrics = await lean.picker_metrics()
        ended = metrics.total("llm_d_epp_extproc_streams_total")
        return ended >= 1 and metrics.total("llm_d_epp_extproc_streams_inflight") == 0

    await eventually(no_stream_is_open)
