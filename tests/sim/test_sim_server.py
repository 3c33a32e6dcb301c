"""A simulated server as its clients, its scraper and its saboteurs see it."""

import asyncio
import base64
import gzip
import json
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
import yarl
from prometheus_client.parser import text_string_to_metric_families

from epp.sim.config import EngineConfig, SimConfig
from epp.sim.pool import SimPool
from epp.sim.server import SERVER_HEADER, SimServer

COMPLETION = {"model": "sim-model", "prompt": "once upon a time", "max_tokens": 4}
ENDLESS = COMPLETION | {"max_tokens": 30_000, "stream": True}


def url(server: SimServer, path: str = "/v1/completions") -> str:
    return server.url + path


async def scrape(http: aiohttp.ClientSession, server: SimServer) -> dict[str, float]:
    async with http.get(url(server, "/metrics")) as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = text_string_to_metric_families(await response.text())
        return {sample.name: sample.value for family in families for sample in family.samples}


async def scrape_until(http: aiohttp.ClientSession, server: SimServer, name: str, value: float) -> dict[str, float]:
    for _ in range(1000):
        metrics = await scrape(http, server)
        if metrics[name] == value:
            return metrics
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} never became {value}: {metrics[name]}")


async def until_idle(server: SimServer) -> None:
    for _ in range(1000):
        if server.engine.next_event_s() is None and server.engine.metrics().running == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the engine never became idle")


async def break_with(http: aiohttp.ClientSession, server: SimServer, **faults: object) -> None:
    async with http.post(url(server, "/sim/faults"), json=faults) as response:
        assert response.status == 200, await response.text()


async def post(http: aiohttp.ClientSession, server: SimServer, body: object = COMPLETION) -> int:
    async with http.post(url(server), json=body) as response:
        await response.read()
        return response.status


# --- shapes -----------------------------------------------------------------------------------------------------------


async def test_the_event_stream_has_the_captured_shape(http: aiohttp.ClientSession, server: SimServer) -> None:
    body = COMPLETION | {"max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with http.post(url(server), json=body, headers={"x-request-id": "abc-123"}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers[SERVER_HEADER] == server.config.name
        events = (await response.read()).split(b"\n\n")
    assert [event[:6] for event in events] == [b"data: "] * 4 + [b""]
    assert events[3] == b"data: [DONE]"
    first, second, usage = (json.loads(event[6:]) for event in events[:3])
    assert first.keys() == {"id", "object", "created", "model", "choices"}
    assert first["id"] == "cmpl-abc-123"
    assert first["choices"][0].keys() == {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
    }  # fmt: skip
    assert [first["choices"][0]["finish_reason"], second["choices"][0]["finish_reason"]] == [None, "length"]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 6


async def test_headers_come_before_the_first_token(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, slow_factor=1e6)
    async with http.post(url(server), json=ENDLESS) as response:
        assert response.status == 200
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.05)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{nope", "body"),
        (b"[]", "body"),
        (b'{"model":"sim-model"}', "prompt"),
        (b'{"model":"sim-model","prompt":[{}]}', "prompt"),
        (b'{"model":"sim-model","prompt":[-1]}', "prompt"),
        (b'{"model":"sim-model","prompt":"x","max_tokens":0}', "max_tokens"),
        (b'{"model":"sim-model","prompt":"x","stream_options":1}', "stream_options"),
        (json.dumps(COMPLETION | {"prompt": "x" * 600_000}).encode(), "input_tokens"),
    ],
)
async def test_bad_bodies_are_400(http: aiohttp.ClientSession, server: SimServer, body: bytes, param: str) -> None:
    async with http.post(url(server), data=body, headers={"content-type": "application/json"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param


async def test_unknown_paths_and_methods_are_json(http: aiohttp.ClientSession, server: SimServer) -> None:
    async with http.post(url(server, "/v1/nope"), data=b"x") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with http.get(url(server)) as response:
        assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})


async def test_gzip_bodies_are_read_and_recorded_as_sent(http: aiohttp.ClientSession, server: SimServer) -> None:
    sent = gzip.compress(b'  {"model": "sim-model",\t"prompt":"\xc3\xa9", "seed": 9007199254740993} ')
    headers = {"content-encoding": "gzip", "x-sim-marker": "m-1", "X-Odd": "a,  b"}
    async with http.post(yarl.URL(url(server) + "?q=%2F", encoded=True), data=sent, headers=headers) as response:
        assert response.status == 200
    assert await post(http, server) == 200
    async with http.get(url(server, "/sim/last_request?marker=m-1")) as response:
        recorded = await response.json()
    assert base64.b64decode(recorded["body_base64"]) == sent
    assert (recorded["method"], recorded["path"]) == ("POST", "/v1/completions?q=%2F")
    assert ["X-Odd", "a,  b"] in recorded["headers"]
    async with http.get(url(server, "/sim/last_request")) as response:
        assert json.loads(base64.b64decode((await response.json())["body_base64"])) == COMPLETION
    async with http.get(url(server, "/sim/last_request?maker=m-1")) as response:
        assert response.status == 400
        assert await response.json() == {"error": "maker: no such parameter; there is marker"}
    async with http.get(url(server, "/sim/last_request?marker=other")) as response:
        assert response.status == 404


async def test_prompts_of_other_tenants_and_adapters_share_no_cache(
    http: aiohttp.ClientSession, server: SimServer
) -> None:
    async def cached_tokens(**changes: str) -> int:
        async with http.post(url(server), json=COMPLETION | {"prompt": "x" * 640} | changes) as response:
            return (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached_tokens() for _ in range(2)] == [0, 144]
    assert [await cached_tokens(cache_salt="tenant") for _ in range(2)] == [0, 144]
    assert [await cached_tokens(model="lora-a") for _ in range(2)] == [0, 144]


# --- capacity ---------------------------------------------------------------------------------------------------------


async def test_a_full_queue_answers_503(http: aiohttp.ClientSession, server: SimServer) -> None:
    responses = [await http.post(url(server), json=ENDLESS) for _ in range(7)]
    assert [response.status for response in responses] == [200] * 6 + [503]
    assert (await responses[6].json())["error"]["code"] == 503
    await scrape_until(http, server, "vllm:num_requests_waiting", 2.0)
    metrics = await scrape_until(http, server, "vllm:admission_rejections_total", 1.0)
    assert metrics["vllm:num_requests_running"] == 4.0
    assert metrics["vllm:num_requests_waiting"] == 2.0
    assert metrics["vllm:kv_cache_usage_perc"] > 0
    for response in responses:
        response.close()
    await scrape_until(http, server, "vllm:num_requests_running", 0.0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot(
    http: aiohttp.ClientSession, server: SimServer, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(post(http, server, ENDLESS | {"stream": stream}))
    await scrape_until(http, server, "vllm:num_requests_running", 1.0)
    task.cancel()
    await until_idle(server)
    metrics = server.engine.metrics()
    assert (metrics.aborted_total, metrics.kv_usage_ratio) == (1, 0.0)
    assert not caplog.records


# --- metrics ----------------------------------------------------------------------------------------------------------


async def test_the_metrics_page_has_vllm_names_and_labels(http: aiohttp.ClientSession, server: SimServer) -> None:
    prompt = COMPLETION | {"model": "lora-a", "prompt": "x" * 640}
    for _ in range(2):
        assert await post(http, server, prompt) == 200
    await scrape_until(http, server, "vllm:generation_tokens_total", 8.0)
    async with http.get(url(server, "/metrics")) as response:
        page = await response.text()
    lines = page.splitlines()
    assert 'vllm:num_requests_running{engine="0",model_name="sim-model"} 0.0' in lines
    assert 'vllm:prefix_cache_queries_total{engine="0",model_name="sim-model"} 320.0' in lines
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="sim-model"} 144.0' in lines
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim-model"} 2.0' in lines
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (cache_info,) = families["vllm:cache_config_info"].samples
    assert (cache_info.labels["block_size"], cache_info.labels["num_gpu_blocks"]) == ("16", "16384")
    lora = max(families["vllm:lora_requests_info"].samples, key=lambda sample: sample.value)
    assert lora.labels == {"max_lora": "4", "running_lora_adapters": "", "waiting_lora_adapters": ""}


async def test_metrics_are_stale_between_two_ticks_of_their_clock(http: aiohttp.ClientSession) -> None:
    config = SimConfig(model="sim-model", metrics_interval_ms=(3_600_000.0, 3_600_000.0), speed=20.0)
    async with SimServer(config) as server:
        assert await post(http, server) == 200
        assert (await scrape(http, server))["vllm:generation_tokens_total"] == 0.0
        assert server.engine.metrics().generation_tokens_total == 4


async def test_frozen_and_garbage_metrics(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, metrics="frozen")
    assert await post(http, server) == 200
    await asyncio.sleep(0.15)
    assert (await scrape(http, server))["vllm:generation_tokens_total"] == 0.0
    await break_with(http, server, metrics="garbage")
    async with http.get(url(server, "/metrics")) as response:
        page = await response.read()
    with pytest.raises(ValueError, match=r"NaN|invalid|[Cc]ould not"):
        list(text_string_to_metric_families(page.decode("latin-1")))
    await break_with(http, server)
    await scrape_until(http, server, "vllm:generation_tokens_total", 4.0)


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_errors_for_the_next_requests_then_healthy_again(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, error_status=500, next_requests=2)
    assert [await post(http, server) for _ in range(3)] == [500, 500, 200]
    await break_with(http, server, error_status=503)
    assert [await post(http, server) for _ in range(3)] == [503, 503, 503]
    await break_with(http, server)
    assert await post(http, server) == 200


async def test_a_hanging_server_never_answers_and_is_left(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, hang=True, next_requests=1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(post(http, server), 0.1)
    assert await post(http, server) == 200


async def test_reset_before_the_first_byte(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, reset_after_tokens=0, next_requests=1)
    with pytest.raises(aiohttp.ClientConnectionError):
        await post(http, server)
    assert await post(http, server) == 200


async def test_reset_mid_stream_after_so_many_tokens(
    http: aiohttp.ClientSession, server: SimServer, caplog: pytest.LogCaptureFixture
) -> None:
    await break_with(http, server, reset_after_tokens=3)
    received = b""

    async def read(response: aiohttp.ClientResponse) -> None:
        nonlocal received
        async for piece in response.content.iter_any():
            received += piece

    async with http.post(url(server), json=ENDLESS) as response:
        with pytest.raises(aiohttp.ClientError):
            await read(response)
    assert received.count(b"data: ") == 3
    await until_idle(server)
    assert not caplog.records


async def test_slow_start_delays_the_first_token(http: aiohttp.ClientSession, server: SimServer) -> None:
    await break_with(http, server, slow_start_ms=3_600_000)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(post(http, server), 0.1)


async def test_health_and_unknown_faults(http: aiohttp.ClientSession, server: SimServer) -> None:
    async with http.get(url(server, "/health")) as response:
        assert response.status == 200
    await break_with(http, server, unhealthy=True)
    async with http.get(url(server, "/health")) as response:
        assert response.status == 503
    for unknown in ({"hagn": True}, {"slow_factor": float("inf")}):
        async with http.post(url(server, "/sim/faults"), json=unknown) as response:
            assert response.status == 400
    async with http.get(url(server, "/sim/faults")) as response:
        assert (await response.json())["unhealthy"] is True


# --- several servers, and the command ---------------------------------------------------------------------------------


async def test_a_pool_serves_on_different_ports(http: aiohttp.ClientSession) -> None:
    async with SimPool.of(3, SimConfig(model="sim-model", speed=20.0)) as pool:
        assert len(set(pool.addresses)) == 3
        names = []
        for server in pool.servers:
            async with http.post(url(server), json=COMPLETION) as response:
                names.append(response.headers[SERVER_HEADER])
        assert names == ["sim-0", "sim-1", "sim-2"]


async def test_a_pool_that_cannot_start_leaves_nothing_behind(server: SimServer) -> None:
    first = SimConfig(engine=EngineConfig())
    pool = SimPool([first, SimConfig(port=server.port)])
    with pytest.raises(OSError, match="address already in use"):
        async with pool:
            pass
    async with SimServer(SimConfig(port=pool.servers[0].port)):  # its port is free again
        pass


@pytest.fixture
async def command() -> AsyncIterator[list[asyncio.subprocess.Process]]:
    started: list[asyncio.subprocess.Process] = []
    yield started
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_command_prints_its_port_and_stops_on_sigterm(
    http: aiohttp.ClientSession, server: SimServer, command: list[asyncio.subprocess.Process]
) -> None:
    async def run(*arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        argv = (sys.executable, "-m", "epp.sim.server", *arguments)
        command.append(await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe))
        return command[-1]

    running = await run("--port", "0", "--name", "one")
    taken = await run("--port", str(server.port))
    too_fast = await run("--speed", "inf")
    line = json.loads(await asyncio.wait_for(running.stdout.readline(), 20))
    assert line["name"] == "one"
    async with http.get(f"http://{line['address']}/health") as response:
        assert response.status == 200
    running.terminate()
    assert await asyncio.wait_for(running.wait(), 20) == 0
    _, errors = await asyncio.wait_for(taken.communicate(), 20)
    assert taken.returncode == 2
    assert errors.count(b"\n") == 1
    _, errors = await asyncio.wait_for(too_fast.communicate(), 20)
    assert too_fast.returncode == 2
    assert b"'inf' is not a number above 0" in errors
