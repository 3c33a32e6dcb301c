"""Where a request goes and under what name, who may say so, and what is left of it when its client leaves."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from scripted_server import ScriptedServer
from stack import Stack, eventually

from epp.sim.config import SimConfig
from epp.sim.faults import Faults
from epp.sim.recorder import Recorded
from epp.sim.server import SERVER_HEADER
from epp.wire.names import DESTINATION, STRIPPED_FROM_CLIENTS

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

MODEL = SimConfig().model
COMPLETIONS = "/v1/completions"
MARKER = "x-sim-marker"


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.url, timeout=aiohttp.ClientTimeout(total=20)) as client:
        yield client
    await eventually(stack.is_idle)


def arrived(stack: Stack, marker: str) -> Recorded:
    """The request as a server got it; exactly one server did."""
    (recorded,) = [r for server in stack.servers if (r := server.recorder.find(marker)) is not None]
    return recorded


# --- under another name -------------------------------------------------------------------------------------------

ALIAS = "our-own/größe"
MESSAGES = [{"role": "user", "content": f"Say {MODEL}."}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": f"Say {MODEL}.", "max_tokens": 12},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/responses": {"input": f"Say {MODEL}.", "max_output_tokens": 12},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(APIS))
async def test_the_server_sees_its_name_of_the_model_and_the_client_its_own(
    stack: Stack, client: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    marker = uuid.uuid4().hex

    def asked(model: str) -> bytes:
        return b'{"seed":1e2,  "model" : "%s" ,%s' % (
            model.encode(),
            json.dumps({**APIS[path], "stream": stream}).encode()[1:],
        )

    async def ask(model: str, headers: dict[str, str]) -> bytes:
        headers["x-request-id"] = "the-same"
        async with client.post(path, data=asked(model), headers=headers) as response:
            assert response.status == 200
            return await response.read()

    renamed = await ask(ALIAS, {MARKER: marker, "x-llm-d-model-name-rewrite": MODEL})
    recorded = arrived(stack, marker)
    assert recorded.body == asked(MODEL)
    assert b"x-llm-d-model-name-rewrite" not in dict(recorded.headers)

    plain = await ask(MODEL, {})
    named = [(_pop_model(event), event) for event in _events(renamed, stream)]
    expected = [(_pop_model(event), event) for event in _events(plain, stream)]
    assert {name for name, _ in expected} <= {MODEL, None}
    assert [name for name, _ in named] == [ALIAS if name == MODEL else None for name, _ in expected]
    assert any(name == ALIAS for name, _ in named)
    assert [_told(event) for _, event in named] == [_told(event) for _, event in expected]
    counted = await stack.picker_metrics()
    assert counted.total("llm_d_epp_request_total", model_name=ALIAS, target_model_name=MODEL) > 0


def _events(answer: bytes, stream: bool) -> list[Any]:
    if not stream:
        return [json.loads(answer)]
    return [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]


def _pop_model(event: Any) -> str | None:
    places = [place for place in (event, event.get("response"), event.get("message")) if isinstance(place, dict)]
    names = [place.pop("model") for place in places if "model" in place]
    return names[0] if names else None


def _told(event: Any) -> str:
    """What was generated, in whatever shape."""
    return "".join(value for key, value in _leaves(event) if key in ("text", "content", "delta") and value)


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for name, member in value.items() for leaf in _leaves(member, name)]
    if isinstance(value, list):
        return [leaf for member in value for leaf in _leaves(member, key)]
    return [(key, value)] if isinstance(value, str) else []


# --- who steers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_that_a_client_sends_steers(stack: Stack, client: aiohttp.ClientSession, method: str) -> None:
    marker = uuid.uuid4().hex
    async with ScriptedServer() as stranger:
        headers = [(name.title(), stranger.address) for name in STRIPPED_FROM_CLIENTS if "rewrite" not in name]
        headers += [(DESTINATION, stranger.address), ("x-envoy-original-dst-host", stranger.address)]
        headers += [(MARKER, marker), ("x-kept", "yes")]
        body = {"model": MODEL, "prompt": "x", "max_tokens": 2} if method == "POST" else None
        path = COMPLETIONS if method == "POST" else "/v1/models"
        async with client.request(method, path, json=body, headers=headers) as response:
            assert response.status == 200
            assert SERVER_HEADER in response.headers
        assert stranger.requests == 0
    got = [(name.decode().lower(), value.decode()) for name, value in arrived(stack, marker).headers]
    assert ("x-kept", "yes") in got
    (destination,) = [value for name, value in got if name == DESTINATION]
    assert destination in stack.addresses
    assert [name for name, value in got if name in STRIPPED_FROM_CLIENTS and name != DESTINATION] == []
    foreign = [name for name, value in got if value == stranger.address and name != "x-envoy-original-dst-host"]
    assert foreign == []


@pytest.mark.parametrize("number", range(3))
async def test_a_prompt_returns_to_the_server_that_has_it_cached(
    stack: Stack, client: aiohttp.ClientSession, number: int
) -> None:
    before = await stack.picker_metrics()
    servers, cached = [], []
    for question in ("first", "second"):
        prompt = f"document {number} " + "of many words " * 300 + question
        async with client.post(COMPLETIONS, json={"model": MODEL, "prompt": prompt, "max_tokens": 2}) as response:
            servers.append(response.headers[SERVER_HEADER])
            cached.append((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert servers[0] == servers[1]
    assert cached[1] > 1000
    await eventually(stack.is_idle)
    after = await stack.picker_metrics()
    name = "llm_d_epp_request_cached_tokens_sum"
    assert after.total(name) - before.total(name) == sum(cached)


# --- clients that leave -------------------------------------------------------------------------------------------


def engine_aborts(stack: Stack) -> int:
    return sum(server.engine.metrics().aborted_total for server in stack.servers)


async def ends(stack: Stack) -> dict[str, float]:
    metrics = await stack.picker_metrics()
    return {c: metrics.total("llm_d_epp_request_end_total", cause=c) for c in ("client_gone", "natural", "lost")}


@pytest.mark.parametrize(
    ("moment", "stream"), [("before the first byte", True), ("before the first byte", False), ("in the middle", True)]
)
async def test_a_client_that_leaves_frees_everything_at_once(
    stack: Stack, client: aiohttp.ClientSession, moment: str, stream: bool
) -> None:
    ends_before, aborts_before = await ends(stack), engine_aborts(stack)
    if moment == "before the first byte":
        for server in stack.servers:
            server.break_with(Faults(slow_start_ms=600_000))
    try:
        asked = {"model": MODEL, "prompt": "x", "max_tokens": 100_000, "stream": stream}
        asking = asyncio.ensure_future(client.post(COMPLETIONS, json=asked).__aenter__())

        async def is_held() -> bool:
            engines = [server.engine.metrics() for server in stack.servers]
            held = (await stack.picker_state())["ledger"]
            return held["requests"] == 1 and sum(e.running for e in engines) == 1

        await eventually(is_held)
        if moment == "in the middle":
            response = await asking
            await response.content.readany()
            response.close()
        else:
            assert not asking.done()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await eventually(stack.is_idle)
    finally:
        for server in stack.servers:
            server.break_with(Faults())
    assert engine_aborts(stack) == aborts_before + 1
    assert await ends(stack) == {**ends_before, "client_gone": ends_before["client_gone"] + 1}


async def test_a_client_that_leaves_before_its_request_is_whole_leaves_nothing_behind(
    stack: Stack, client: aiohttp.ClientSession
) -> None:
    before = await ends(stack)

    async def half() -> AsyncIterator[bytes]:
        yield b'{"model": "x", '
        await asyncio.Event().wait()

    async def streams() -> int:
        return int((await stack.picker_metrics()).total("llm_d_epp_extproc_streams_inflight"))

    async def is_open() -> bool:
        return await streams() == 1

    async def is_closed() -> bool:
        return await streams() == 0

    asking = asyncio.ensure_future(client.post(COMPLETIONS, data=half()).__aenter__())
    await eventually(is_open)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(is_closed)
    assert await stack.is_idle()
    assert await ends(stack) == before
