"""The picker itself behind the real Envoy, with either bootstrap: who answers, what it counts, what its death costs."""

from typing import Any

import aiohttp
import pytest
from stack import Stack, eventually

from epp.sim.config import SimConfig
from epp.sim.faults import Faults
from epp.sim.server import SERVER_HEADER

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]

SLOW = SimConfig(speed=0.5)

THREE_ADDRESSES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
  parameters: {maxNumOfEndpoints: 3}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: random-picker
"""


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": SimConfig().model, "prompt": "a prompt that nobody logs", "max_tokens": 4, **fields}


async def ask(stack: Stack, client: aiohttp.ClientSession, **fields: Any) -> tuple[int, str | None, bytes]:
    async with client.post(f"{stack.url}/v1/completions", json=completion(**fields)) as response:
        return response.status, response.headers.get(SERVER_HEADER), await response.read()


async def none_in_flight(stack: Stack) -> bool:
    return (await stack.picker_metrics()).total("llm_d_epp_request_running") == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_are_answered_and_counted(stack: Stack) -> None:
    before = (await stack.picker_metrics()).total("llm_d_epp_request_total")
    async with aiohttp.ClientSession() as client:
        answers = [await ask(stack, client, stream=stream) for stream in (False, True, False, True)]
    assert [status for status, _, _ in answers] == [200] * 4
    assert answers[1][2].rstrip().endswith(b"data: [DONE]")
    assert (await stack.picker_metrics()).total("llm_d_epp_request_total") == before + 4
    await eventually(lambda: none_in_flight(stack))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_refusal_reaches_the_client_as_the_picker_wrote_it(stack: Stack) -> None:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{stack.url}/v1/completions", data=b"{not json") as response,
    ):
        assert (response.status, response.content_type) == (400, "application/json")
        assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-bad-request"
        assert "not valid JSON" in (await response.json())["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_prompt_is_in_no_log(stack: Stack) -> None:
    async with aiohttp.ClientSession() as client:
        await ask(stack, client, prompt="xyzzy-plugh")
    assert "xyzzy-plugh" not in stack.picker.log() + stack.envoy.log_path.read_text()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_leaves_frees_its_reservation(stack: Stack) -> None:
    async with aiohttp.ClientSession() as client:
        long = completion(max_tokens=4000, stream=True)
        async with client.post(f"{stack.url}/v1/completions", json=long) as response:
            await response.content.readany()
            assert not await none_in_flight(stack)
            response.close()
    await eventually(lambda: none_in_flight(stack))


async def test_the_reservation_is_where_the_answer_comes_from() -> None:
    """Two of the three servers fail before their first byte: wherever they stand in the list, the third has it all."""
    async with Stack(3, config_text=THREE_ADDRESSES) as stack, aiohttp.ClientSession() as client:
        stack.servers[0].break_with(Faults(error_status=503))
        stack.servers[1].break_with(Faults(reset_after_tokens=0))
        for _ in range(6):
            long = completion(max_tokens=4000, stream=True)
            async with client.post(f"{stack.url}/v1/completions", json=long) as response:
                assert (response.status, response.headers[SERVER_HEADER]) == (200, "sim-2")
                await response.content.readany()
                state = await stack.picker_state()
                response.close()
            held = {e["address"]: e["in_flight_requests"] for e in state["pool"]["endpoints"]}
            assert [held[address] for address in stack.addresses] == [0, 0, 1]
            await eventually(lambda: none_in_flight(stack))


@pytest.mark.parametrize("fail_open", [True, False])
async def test_recommended_completes_what_streams_when_the_picker_is_killed(fail_open: bool) -> None:
    async with Stack([SLOW], tls=True, fail_open=fail_open) as stack, aiohttp.ClientSession() as client:
        async with client.post(f"{stack.url}/v1/completions", json=completion(max_tokens=40, stream=True)) as response:
            await response.content.readany()
            await stack.picker.kill()
            assert (await response.read()).rstrip().endswith(b"data: [DONE]")
        status, _, _ = await ask(stack, client)
        assert status == (200 if fail_open else 503)


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
async def test_envoy_may_ask_over_a_unix_socket(bootstrap: str) -> None:
    async with (
        Stack(1, bootstrap=bootstrap, fail_open=False, unix_socket=True) as stack,
        aiohttp.ClientSession() as client,
    ):
        for stream in (False, True):
            status, server, _ = await ask(stack, client, stream=stream)
            assert (status, server) == (200, "sim-0")
        await eventually(lambda: none_in_flight(stack))
        assert (await stack.picker_metrics()).total("llm_d_epp_request_total") == 2


async def test_the_picker_ends_orderly_on_sigterm() -> None:
    async with Stack(1, picker_flags=["--drain-timeout", "0s"]) as stack:
        assert await stack.picker.terminate() == 0
