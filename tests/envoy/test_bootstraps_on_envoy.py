"""What our bootstraps promise while the picker answers: where a request goes, and what the picker is shown."""

import asyncio
import subprocess
from pathlib import Path

import aiohttp
import pytest
from recording_picker import RecordingPicker
from rig import DESTINATION, STREAM, rig
from scripted_server import CHUNKS, ScriptedServer, closed_address

from epp.sim.bootstraps import find_bootstrap, render_bootstrap, write_eds
from epp.sim.envoyproxy import EnvoyProxy

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
def test_the_shipped_files_are_valid_as_they_are(bootstrap: str, envoy_binary: Path) -> None:
    command = [envoy_binary, "--mode", "validate", "-l", "error", "-c", find_bootstrap(bootstrap)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


# --- where a request goes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_picked_server_answers_and_no_other(method: str) -> None:
    async with rig("recommended", ["good", "good", "good"]) as r:
        r.picker.destination = r.servers[1].address
        for _ in range(6):
            async with r.ask(method) as response:
                assert (await response.json())["server"] == r.servers[1].address
        assert r.asked == [0, 6, 0]


@pytest.mark.parametrize("fault", ["busy", "reset"])
async def test_the_next_address_answers_once_when_the_first_fails(fault: str) -> None:
    async with rig("recommended", [fault, "good", "good"]) as r:
        async with r.ask() as response:
            assert response.status == 200
        assert r.asked == [1, 1, 0]
        assert (await r.picker.wait_for(0)).served == r.servers[1].address


async def test_the_next_address_answers_once_when_the_first_is_closed() -> None:
    closed = closed_address()
    async with (
        rig("recommended", ["good", "good"]) as r,
        EnvoyProxy(
            render_bootstrap(
                epp_address=r.picker.address, epp_tls=False, endpoints=[closed, *(s.address for s in r.servers)]
            )
        ) as envoy,
    ):
        r.picker.destination = f"{closed},{r.servers[0].address}"
        async with r.client.post(f"{envoy.url}/v1/completions", data=b"{}") as response:
            assert response.status == 200
        assert r.asked == [1, 0]
        assert (await r.picker.wait_for(0)).served == r.servers[0].address


async def test_no_server_is_asked_twice_when_the_list_is_used_up() -> None:
    async with rig("recommended", ["busy", "good", "good"]) as r:
        r.picker.destination = r.servers[0].address
        for _ in range(8):
            async with r.ask() as response:
                assert response.status == 200
        assert r.asked[0] == 8
        assert sum(r.asked[1:]) == 8


async def test_nothing_is_repeated_after_the_first_byte() -> None:
    async with rig("recommended", ["breaks", "good"]) as r:
        async with r.ask() as response:
            assert await response.content.readany() == CHUNKS[0]
            r.servers[0].go_on.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert r.asked == [1, 0]


async def test_the_last_answer_of_a_pool_that_is_busy_throughout_is_passed_on() -> None:
    async with rig("recommended", ["busy", "busy"]) as r, r.ask() as response:
        assert (response.status, await response.json()) == (503, {"error": "full"})


async def test_an_address_outside_the_pool_is_never_reached() -> None:
    async with ScriptedServer() as stranger, rig("recommended") as r:
        r.picker.destination = stranger.address
        async with r.ask() as response:
            assert (await response.json())["server"] == r.servers[0].address
        assert stranger.requests == 0


# What a client could steer a request with, or the sidecar of a model server.
STEERING = (
    DESTINATION,
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-data-parallel-rank",
    "x-kv-cache-source-host-port",
)


@pytest.mark.parametrize("picker_up", [True, False])
async def test_a_client_cannot_steer(picker_up: bool) -> None:
    async with rig("recommended", picker_up=picker_up) as r:
        async with r.ask(headers=dict.fromkeys(STEERING, "10.9.9.9:1")) as response:
            assert response.status == 200
        (seen,) = [headers for server in r.servers for headers in server.headers]
        assert "10.9.9.9:1" not in seen.values()


async def test_members_come_and_go_with_the_file(tmp_path: Path) -> None:
    pool = tmp_path / "pool.json"
    async with ScriptedServer() as first, ScriptedServer() as second:
        write_eds(pool, [first.address])
        async with rig("recommended", eds_path=pool) as r:
            r.picker.destination = second.address
            async with r.ask() as response:
                assert (await response.json())["server"] == first.address
            write_eds(pool, [second.address])
            for _ in range(250):
                async with r.ask() as response:
                    if (await response.json())["server"] == second.address:
                        break
                await asyncio.sleep(0.02)
            assert second.requests == 1


async def test_the_picker_may_serve_on_several_addresses() -> None:
    async with RecordingPicker() as second, rig("recommended") as r:
        second.destination = r.servers[0].address
        both = [r.picker.address, second.address]
        config = render_bootstrap(epp_address=both, epp_tls=False, endpoints=[r.servers[0].address])
        async with EnvoyProxy(config) as envoy:
            for _ in range(4):
                async with r.client.get(envoy.url) as response:
                    assert response.status == 200
        assert len(r.picker.exchanges) + len(second.exchanges) == 4
        assert r.picker.exchanges
        assert second.exchanges


async def test_gateway_connects_to_one_address_only_and_to_any() -> None:
    async with rig("gateway", ["good", "busy"]) as r:
        async with r.ask() as response:
            assert response.status == 503  # a list is no address
        r.picker.destination = r.servers[1].address
        async with r.ask() as response:
            assert (response.status, await response.json()) == (503, {"error": "full"})
        assert r.asked == [0, 1]


# --- what the picker is shown -------------------------------------------------------------------------------------

RECOMMENDED_RESPONSE = ["response_headers", "response_body", "response_body.end"]
SHOWN = {
    ("recommended", "GET"): ["request_headers.end", *RECOMMENDED_RESPONSE],
    ("recommended", "POST"): ["request_headers", "request_body.end", *RECOMMENDED_RESPONSE],
    ("gateway", "GET"): ["request_headers.end", *RECOMMENDED_RESPONSE],
    ("gateway", "POST"): ["request_headers", "request_body", "request_body.end", *RECOMMENDED_RESPONSE],
}


@pytest.mark.parametrize(("bootstrap", "method"), list(SHOWN))
async def test_the_picker_sees_the_whole_exchange_in_order(bootstrap: str, method: str) -> None:
    async with rig(bootstrap, ["stream"]) as r:
        async with r.ask(method) as response:
            assert await response.content.readany() == CHUNKS[0]  # before the server has said more
            r.servers[0].go_on.set()
            assert CHUNKS[0] + await response.read() == STREAM
        exchange = await r.picker.wait_for(0)
        assert exchange.kinds == SHOWN[bootstrap, method]
        assert exchange.body("response_body") == STREAM
        if method == "POST":
            assert exchange.body("request_body") == b'{"prompt": "x"}'
        assert exchange.served == (r.servers[0].address if bootstrap == "recommended" else None)


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
async def test_a_client_that_leaves_ends_the_stream_without_an_end_of_the_response(bootstrap: str) -> None:
    async with rig(bootstrap, ["stream"]) as r:
        async with r.ask() as response:
            await response.content.readany()
            response.close()
        exchange = await r.picker.wait_for(0)
        assert exchange.kinds[-1] == "response_body"
        await asyncio.wait_for(r.servers[0].aborted.wait(), 10)


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
async def test_a_client_that_leaves_before_the_response_ends_the_stream(bootstrap: str) -> None:
    async with rig(bootstrap, ["mute"]) as r:
        asking = asyncio.ensure_future(r.ask().__aenter__())
        await asyncio.wait_for(r.servers[0].arrived.wait(), 10)
        asking.cancel()
        exchange = await r.picker.wait_for(0)
        assert not exchange.of_kind("response_headers")
        await asyncio.wait_for(r.servers[0].aborted.wait(), 10)


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
async def test_a_server_that_breaks_off_is_a_response_without_an_end(bootstrap: str) -> None:
    async with rig(bootstrap, ["breaks"]) as r:
        async with r.ask() as response:
            await response.content.readany()
            r.servers[0].go_on.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        exchange = await r.picker.wait_for(0)
        assert "response_body.end" not in exchange.kinds


@pytest.mark.parametrize("bootstrap", ["recommended", "gateway"])
async def test_a_long_body_arrives_whole(bootstrap: str) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB
    async with rig(bootstrap) as r:
        async with r.ask(data=body) as response:
            assert (await response.json())["bytes"] == len(body)
        assert (await r.picker.wait_for(0)).body("request_body") == body


async def test_a_long_body_can_be_repeated_at_the_next_address() -> None:
    async with rig("recommended", ["busy", "good"]) as r:
        async with r.ask(data=b"x" * 5_000_000) as response:
            assert (await response.json())["bytes"] == 5_000_000
        assert r.asked == [1, 1]
