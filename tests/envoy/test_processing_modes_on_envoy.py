"""The picker behind an Envoy that shows bodies in any way it can: whatever the mode, no byte changes and nothing leaks.

One Envoy with a listener for every pair of modes. It fails closed, so a picker that breaks a stream cannot hide.
"""

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from stack import Stack, eventually

from epp.sim.bootstraps import Bootstrap, render_bootstrap
from epp.sim.config import SimConfig
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.server import SERVER_HEADER
from epp.wire.names import DESTINATION

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

MODEL = SimConfig().model
CHAT = "/v1/chat/completions"
MARKER = "x-sim-marker"
BODY_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")


def processing_mode(request: str, response: str, response_headers: str = "SEND") -> dict[str, str]:
    """Full duplex asks for trailers; elsewhere they are left out, but for a response whose body is shown in pieces."""
    return {
        "request_header_mode": "SEND",
        "request_body_mode": request,
        "request_trailer_mode": "SEND" if request == "FULL_DUPLEX_STREAMED" else "SKIP",
        "response_header_mode": response_headers,
        "response_body_mode": response,
        "response_trailer_mode": "SEND" if "STREAMED" in response else "SKIP",
    }


MODES = {
    f"{request}-{response}": processing_mode(request, response) for request, response in product(BODY_MODES, BODY_MODES)
}
MODES["requests-only"] = processing_mode("BUFFERED", "NONE", response_headers="SKIP")
# A buffer that is too small cuts bodies. Envoy then takes the picker's answer but does not choose the route anew, so
# this listener has the route that needs no answer.
CUT = "cut"
MODES[CUT] = processing_mode("BUFFERED_PARTIAL", "BUFFERED_PARTIAL")


@dataclass
class Listeners:
    stack: Stack
    envoy: EnvoyProxy
    client: aiohttp.ClientSession
    urls: dict[str, str]  # by the name of the modes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listeners(envoy_binary: Any) -> AsyncIterator[Listeners]:
    async with Stack(2) as stack:
        bootstrap = _bootstrap(stack, fail_open=False)
        bootstrap["static_resources"]["listeners"] = [
            _listener(bootstrap if name != CUT else _bootstrap(stack, fail_open=True), name, mode)
            for name, mode in MODES.items()
        ]
        async with EnvoyProxy(bootstrap) as envoy, aiohttp.ClientSession() as client:
            yield Listeners(stack, envoy, client, await _urls(envoy, client))


def _bootstrap(stack: Stack, fail_open: bool) -> Bootstrap:
    return render_bootstrap(
        epp_address=f"127.0.0.1:{stack.picker.ports['grpc']}",
        epp_tls=False,
        endpoints=stack.addresses,
        fail_open=fail_open,
        ext_proc={"failure_mode_allow": False},
    )


def _listener(bootstrap: Bootstrap, name: str, mode: dict[str, str]) -> Bootstrap:
    listener: Bootstrap = copy.deepcopy(bootstrap["static_resources"]["listeners"][0])
    listener["name"] = name
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (ext_proc,) = (f for f in manager["http_filters"] if f["name"] == "envoy.filters.http.ext_proc")
    ext_proc["typed_config"]["processing_mode"] = mode
    if name == CUT:
        listener["per_connection_buffer_limit_bytes"] = 2048
        del manager["route_config"]["virtual_hosts"][0]["request_body_buffer_limit"]
    return listener


async def _urls(envoy: EnvoyProxy, client: aiohttp.ClientSession) -> dict[str, str]:
    async with client.get(f"{envoy.admin_url}/listeners?format=json") as response:
        found = json.loads(await response.read())["listener_statuses"]
    return {
        status["name"]: f"http://127.0.0.1:{status['local_address']['socket_address']['port_value']}"
        for status in found
    }


def asked(stream: bool) -> bytes:
    """More than Envoy shows in one piece, and with characters that may be cut."""
    text = "größe 東京 🙂 " * 8_000
    body = {"messages": [{"role": "user", "content": text}], "stream": stream, "max_tokens": 30}
    return (
        b'{ "model":"%s",\t"seed": 9007199254740993, ' % MODEL.encode()
        + json.dumps(body, ensure_ascii=False)[1:].encode()
    )


@pytest.mark.parametrize("modes", list(MODES))
async def test_requests_and_answers_pass_unchanged(listeners: Listeners, modes: str) -> None:
    stack, url = listeners.stack, listeners.urls[modes]
    timeout = aiohttp.ClientTimeout(total=20)

    async def ask(method: str, path: str, body: bytes | None = None) -> bytes:
        marker = uuid.uuid4().hex
        async with listeners.client.request(
            method, url + path, data=body, headers={MARKER: marker}, timeout=timeout
        ) as response:
            answer = await response.read()
            assert response.status == 200, answer
            assert SERVER_HEADER in response.headers
        ((server, recorded),) = [(s, r) for s in stack.servers if (r := s.recorder.find(marker)) is not None]
        assert dict(recorded.headers)[DESTINATION.encode()].decode() == server.address
        assert (recorded.method, recorded.path, recorded.body) == (method, path, body or b"")
        return answer

    before = await stack.picker_metrics()
    whole, streamed, models = await asyncio.gather(
        ask("POST", CHAT, asked(False)), ask("POST", CHAT, asked(True)), ask("GET", "/v1/models")
    )
    answer = json.loads(whole)
    assert answer["usage"]["completion_tokens"] == 30
    events = [line[6:] for line in streamed.split(b"\n") if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == answer["choices"][0]["message"]["content"]
    assert json.loads(models)["data"][0]["id"] == MODEL

    await eventually(stack.is_idle)
    after = await stack.picker_metrics()
    assert (
        after.total("llm_d_epp_request_end_total", cause="natural")
        == before.total("llm_d_epp_request_end_total", cause="natural") + 3
    )
    assert after.total("llm_d_epp_request_total") == before.total("llm_d_epp_request_total") + 3


async def test_a_client_that_leaves_frees_its_server_in_every_mode(listeners: Listeners) -> None:
    async def leave(url: str) -> None:
        body = {"model": MODEL, "prompt": "x", "stream": True, "max_tokens": 100_000}
        async with listeners.client.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readany()
            response.close()

    unbuffered = [url for modes, url in listeners.urls.items() if "-BUFFERED" not in modes]
    await asyncio.gather(*map(leave, unbuffered))
    await eventually(listeners.stack.is_idle)


async def test_envoy_has_no_complaint_about_the_picker(listeners: Listeners) -> None:
    """Comes last: no stream failed, timed out, or got a message that it had not asked for."""
    stats = listeners.envoy.stats("ext_proc")
    for name in ("streams_failed", "spurious_msgs_received", "message_timeouts", "failure_mode_allowed"):
        found = {stat: value for stat, value in stats.items() if stat.endswith(f"ext_proc.{name}")}
        assert found
        assert not any(found.values()), found
