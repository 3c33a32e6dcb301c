"""What our bootstraps promise when the picker fails, and how Envoy tells clients what it cannot serve."""

import aiohttp
import pytest
from rig import DESTINATION, STREAM, is_told_in_json, rig
from scripted_server import closed_address

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_recommended_fails_open_when_the_picker_is_down(method: str) -> None:
    async with rig("recommended", ["good", "good"], picker_up=False, fail_open=True) as r:
        for _ in range(20):
            async with r.ask(method) as response:
                assert response.status == 200
        assert sum(r.asked) == 20


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_recommended_fails_closed_when_the_picker_is_down(method: str) -> None:
    async with rig("recommended", picker_up=False, fail_open=False) as r:
        async with r.ask(method, headers={DESTINATION: r.servers[0].address}) as response:
            await is_told_in_json(response, 503, "picker-unavailable")
            assert response.headers["retry-after"] == "1"
        assert r.asked == [0]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("fail_open", [True, False])
async def test_recommended_does_not_wait_for_a_silent_picker(method: str, fail_open: bool) -> None:
    async with rig("recommended", fail_open=fail_open, ext_proc={"message_timeout": "0.2s"}) as r:
        r.picker.silent = True
        async with r.ask(method) as response:
            assert response.status == (200 if fail_open else 503)


@pytest.mark.parametrize("fail_open", [True, False])
async def test_recommended_completes_a_response_whose_picker_dies(fail_open: bool) -> None:
    async with rig("recommended", ["stream"], fail_open=fail_open) as r, r.ask() as response:
        first = await response.content.readany()
        await r.picker.die()
        r.servers[0].go_on.set()
        assert first + await response.read() == STREAM


@pytest.mark.parametrize("fail_open", [True, False])
async def test_recommended_completes_a_response_whose_picker_falls_silent(fail_open: bool) -> None:
    options = {"fail_open": fail_open, "ext_proc": {"message_timeout": "0.2s"}}
    async with rig("recommended", ["stream"], **options) as r, r.ask() as response:
        first = await response.content.readany()
        r.picker.silent = True
        r.servers[0].go_on.set()
        assert first + await response.read() == STREAM


@pytest.mark.parametrize("fail_open", [True, False])
async def test_gateway_cuts_a_response_whose_picker_dies(fail_open: bool) -> None:
    async with rig("gateway", ["stream"], fail_open=fail_open) as r, r.ask() as response:
        await response.content.readany()
        await r.picker.die()
        r.servers[0].go_on.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


@pytest.mark.parametrize(
    ("fail_open", "method", "status", "reason"),
    [
        (False, "GET", 500, "picker-unavailable"),
        (False, "POST", 500, "picker-unavailable"),
        (True, "GET", 503, "rejected-no-endpoints"),
        (True, "POST", 500, "picker-unavailable"),
    ],
)
async def test_gateway_cannot_serve_without_its_picker(fail_open: bool, method: str, status: int, reason: str) -> None:
    async with rig("gateway", picker_up=False, fail_open=fail_open) as r:
        async with r.ask(method) as response:
            await is_told_in_json(response, status, reason)
        assert r.asked == [0]


@pytest.mark.parametrize("fail_open", [True, False])
async def test_gateway_has_no_timeout_for_a_silent_picker(fail_open: bool) -> None:
    async with rig("gateway", fail_open=fail_open, ext_proc={"message_timeout": "0.05s"}) as r:
        r.picker.silent = True
        with pytest.raises(TimeoutError):
            await r.ask(timeout=aiohttp.ClientTimeout(total=0.5))
        assert r.asked == [0]


async def test_gateway_lets_a_client_steer_while_it_fails_open() -> None:
    async with rig("gateway", picker_up=False, fail_open=True) as r:
        async with r.ask("GET", headers={DESTINATION: r.servers[0].address}) as response:
            assert response.status == 200
        assert r.asked == [1]


# --- Envoy's own errors -------------------------------------------------------------------------------------------


async def test_a_body_beyond_the_limit_is_refused_in_json() -> None:
    async with rig("recommended") as r:
        async with r.ask(data=b"x" * 33_000_001) as response:
            await is_told_in_json(response, 413, "rejected-too-large")
        exchange = await r.picker.wait_for(0)
        assert exchange.kinds[:2] == ["request_headers", "response_headers"]  # an answer without a request body


@pytest.mark.parametrize(("endpoints", "reason"), [([], "rejected-no-endpoints"), (["closed"], "upstream-failed")])
async def test_an_unreachable_pool_is_told_in_json(endpoints: list[str], reason: str) -> None:
    addresses = [closed_address() for _ in endpoints]
    async with rig("recommended", endpoints=addresses) as r, r.ask() as response:
        await is_told_in_json(response, 503, reason)


async def test_gateway_tells_an_unreachable_server_in_json() -> None:
    async with rig("gateway") as r:
        r.picker.destination = closed_address()
        async with r.ask() as response:
            await is_told_in_json(response, 503, "upstream-failed")
