"""Requests that the picker answers itself, and a pool that comes from a file and changes while requests are served."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from stack import Stack, eventually, write_endpoints

from epp.sim.config import SimConfig
from epp.sim.faults import Faults, MetricsFault
from epp.sim.server import SERVER_HEADER

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
DROPPED_REASON = "x-llm-d-request-dropped-reason"
ASKED = {"model": SimConfig().model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}

# Picks by chance, so that the whole pool is used and a change of it is seen soon.
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
- type: metrics-data-source
- type: core-metrics-extractor
- type: file-discovery
  parameters: {path: "%s", watchFile: true}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
dataLayer:
  discovery: {pluginRef: file-discovery}
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""


@pytest.fixture(scope="module")
def endpoints_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool") / "endpoints.json"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["recommended", "gateway"])
async def stack(request: pytest.FixtureRequest, endpoints_file: Path) -> AsyncIterator[Stack]:
    """A picker with narrow limits, whose pool is in a file."""
    flags = ["--max-request-body", "200000", "--request-timeout", "3s"]
    async with Stack(
        pool=3,
        bootstrap=request.param,
        config_text=CONFIG % endpoints_file,
        endpoints_file=endpoints_file,
        picker_flags=flags,
    ) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.url, timeout=aiohttp.ClientTimeout(total=20)) as client:
        yield client
    await eventually(stack.is_idle)


async def is_refused(response: aiohttp.ClientResponse, status: int, reason: str) -> None:
    """In the shape of the API that was asked, and by the picker and not by a server."""
    assert (response.status, response.content_type) == (status, "application/json")
    assert response.headers.getall(DROPPED_REASON) == [reason]
    assert SERVER_HEADER not in response.headers
    told = await response.json()
    assert told["error"]["message"].startswith("inference error: ")
    if response.url.path == MESSAGES:
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
    else:
        assert set(told["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("body", [b'{"model": ', b'["a list"]', b"\xff\xfe"])
async def test_what_is_no_json_object_is_400(client: aiohttp.ClientSession, path: str, body: bytes) -> None:
    async with client.post(path, data=body) as response:
        await is_refused(response, 400, "rejected-bad-request")


async def test_a_post_without_a_body_is_400(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT) as response:
        await is_refused(response, 400, "rejected-bad-request")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_body_beyond_the_limit_is_413(client: aiohttp.ClientSession, path: str) -> None:
    async with client.post(path, json={**ASKED, "padding": "x" * 200_000}) as response:
        await is_refused(response, 413, "rejected-too-large")
    async with client.post(path, json={**ASKED, "padding": "x" * 199_000}) as response:
        assert response.status == 200


async def test_a_body_that_does_not_come_is_408(client: aiohttp.ClientSession) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"model": "'
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(20)

    async def asked(path: str) -> None:
        async with client.post(path, data=slowly()) as response:
            await is_refused(response, 408, "rejected-too-slow")

    await asyncio.gather(asked(CHAT), asked(MESSAGES))


async def test_refusals_are_counted_as_such_and_reserve_nothing(stack: Stack, client: aiohttp.ClientSession) -> None:
    before = await stack.picker_metrics()
    async with client.post(CHAT, data=b"{") as response:
        assert response.status == 400
    after = await stack.picker_metrics()
    for name, labels in (("request_end_total", {"cause": "rejected"}), ("request_error_total", {})):
        assert after.total(f"llm_d_epp_{name}", **labels) == before.total(f"llm_d_epp_{name}", **labels) + 1
    assert after.total("llm_d_epp_request_total") == before.total("llm_d_epp_request_total")
    assert (await stack.picker_state())["ledger"] == {"streams": 0, "requests": 0, "tokens": 0}


# --- the pool -----------------------------------------------------------------------------------------------------


async def has_pool(stack: Stack, addresses: list[str]) -> None:
    async def holds() -> bool:
        endpoints = (await stack.picker_state())["pool"]["endpoints"]
        return sorted(e["address"] for e in endpoints) == sorted(addresses)

    await eventually(holds)


async def answering(client: aiohttp.ClientSession, requests: int = 30) -> set[str]:
    """Who answers, of so many requests."""

    async def ask() -> str:
        async with client.post(CHAT, json=ASKED) as response:
            assert response.status == 200
            return response.headers[SERVER_HEADER]

    return set(await asyncio.gather(*(ask() for _ in range(requests))))


async def test_requests_follow_the_endpoints_file(
    stack: Stack, client: aiohttp.ClientSession, endpoints_file: Path
) -> None:
    all_three = stack.addresses
    assert await answering(client) == {"sim-0", "sim-1", "sim-2"}

    write_endpoints(endpoints_file, all_three[:1])
    await has_pool(stack, all_three[:1])
    assert await answering(client) == {"sim-0"}

    write_half(endpoints_file)
    await eventually(lambda: _logged(stack, "endpoints of before stay"))
    assert await answering(client) == {"sim-0"}

    write_endpoints(endpoints_file, all_three)
    await has_pool(stack, all_three)
    assert await answering(client) == {"sim-0", "sim-1", "sim-2"}


def write_half(path: Path) -> None:
    """As a writer does who is interrupted, and does not rename."""
    whole = json.dumps({"endpoints": [{"name": "other", "address": "127.0.0.1", "port": 1}]})
    path.write_text(whole[: len(whole) // 2])


async def _logged(stack: Stack, text: str) -> bool:
    return text in stack.picker.log()


async def test_an_empty_pool_is_503_with_a_time_to_come_back(
    stack: Stack, client: aiohttp.ClientSession, endpoints_file: Path
) -> None:
    write_endpoints(endpoints_file, [])
    await has_pool(stack, [])
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", CHAT, {"json": ASKED}),
        ("POST", MESSAGES, {"json": ASKED}),
        ("GET", "/v1/models", {}),
    ]
    for method, path, options in asked:
        async with client.request(method, path, **options) as response:
            await is_refused(response, 503, "rejected-no-endpoints")
            assert response.headers["retry-after"] == "1"
    write_endpoints(endpoints_file, stack.addresses)
    await has_pool(stack, stack.addresses)
    assert await answering(client, 1)


async def test_a_server_whose_metrics_hang_is_known_as_such_and_still_serves(
    stack: Stack, client: aiohttp.ClientSession
) -> None:
    stack.servers[1].break_with(Faults(metrics=MetricsFault.HANG))

    async def scrape_errors() -> dict[str, str | None]:
        return {e["address"]: e["scrape_error"] for e in (await stack.picker_state())["pool"]["endpoints"]}

    async def only_the_second_fails() -> bool:
        errors = await scrape_errors()
        return [errors[address] is not None for address in stack.addresses] == [False, True, False]

    async def none_fails() -> bool:
        return not any((await scrape_errors()).values())

    await eventually(only_the_second_fails)
    assert await answering(client) == {"sim-0", "sim-1", "sim-2"}
    stack.servers[1].break_with(Faults())
    await eventually(none_fails)
