"""Servers, clients, pickers and proxies that break, behind the real Envoy: what the client gets, what is counted."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from scripted_server import closed_address
from stack import Metrics, Stack, eventually

from epp.endings import EndCause
from epp.sim.config import EngineConfig, SimConfig
from epp.sim.faults import Faults, MetricsFault
from epp.sim.server import SERVER_HEADER, SimServer

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]

BOOTSTRAPS = ["recommended", "gateway"]
SLOW = SimConfig(speed=0.25)
HEALED = Faults()
CLIENT_BREAKS = (aiohttp.ClientPayloadError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)

THREE_ADDRESSES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-scorer
- type: random-picker
  parameters: {maxNumOfEndpoints: 3}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefix-cache-scorer
  - pluginRef: random-picker
"""


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": SLOW.model, "prompt": "hello", "max_tokens": 4, **fields}


@asynccontextmanager
async def client_of(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(stack.url, timeout=timeout, connector=connector) as client:
        yield client


def endpoint_name(server: SimServer) -> str:
    return server.address.replace(":", "-")


async def nothing_in_flight(stack: Stack) -> bool:
    page = await stack.picker_metrics()
    gauges = ("request_running", "inflight_requests", "inflight_tokens")
    return not any(page.total(f"llm_d_epp_{gauge}") for gauge in gauges)


async def settled(stack: Stack) -> Metrics:
    """The picker's metrics, once nothing is in flight."""
    await eventually(lambda: nothing_in_flight(stack))
    ledger = (await stack.picker_state())["ledger"]
    assert not any(ledger.values()), ledger
    return await stack.picker_metrics()


async def prefix_blocks(stack: Stack) -> dict[str, int]:
    """Blocks that the picker believes each endpoint has cached, by its name."""
    plugins = json.loads(await stack.picker.ask("/debug/plugins/state"))["plugins"].values()
    (state,) = (p["state"] for p in plugins if p["type"] == "approx-prefix-cache-producer")
    return {name.partition("/")[2]: blocks for name, blocks in state["blocks_by_endpoint"].items()}


# --- a server that is gone ----------------------------------------------------------------------------------------


async def test_the_next_address_serves_and_is_counted_while_a_server_is_down_and_after() -> None:
    ports = [int(closed_address().rpartition(":")[2]) for _ in range(3)]
    pool = [SimConfig(name=f"sim-{i}", seed=i, port=port, speed=0.5) for i, port in enumerate(ports)]
    async with Stack(pool, config_text=THREE_ADDRESSES) as stack, client_of(stack) as client:
        down = stack.servers[0]
        await down.__aexit__(None, None, None)
        served = set()
        for number in range(6):
            prompt = f"{number} once upon a time " * 60
            asked = completion(prompt=prompt, max_tokens=2000, stream=True)
            async with client.post("/v1/completions", json=asked) as response:
                assert response.status == 200
                await response.content.readany()
                by = response.headers[SERVER_HEADER]
                page = await stack.picker_metrics()
                held = [
                    page.total("llm_d_epp_inflight_requests", endpoint_name=endpoint_name(s)) for s in stack.servers
                ]
                assert held == [float(s.config.name == by) for s in stack.servers]
                response.close()
            served.add(by)
            await settled(stack)
        assert served <= {"sim-1", "sim-2"}
        blocks = await prefix_blocks(stack)
        assert all(blocks.get(endpoint_name(s), 0) > 0 for s in stack.servers if s.config.name in served)

        async with SimServer(pool[0]) as back:

            async def serves_again() -> bool:
                async with client.post("/v1/completions", json=completion()) as response:
                    return response.status == 200 and response.headers[SERVER_HEADER] == back.config.name

            await eventually(serves_again)


# --- a server that misbehaves, and how that is counted ------------------------------------------------------------

END, ERROR = "llm_d_epp_request_end_total", "llm_d_epp_request_error_total"
CAUSES = [cause.value for cause in EndCause]
# By the recommended bootstrap's access log; where there is none, it looks like a client that left, which is no error.
BROKEN_OFF = "upstream_error"
BREAKS = {
    # faults: status that the client sees (None: it never sees the end), cause, requests counted as errors
    "500": (Faults(error_status=500), 500, "natural", 1),
    "a full queue": (Faults(error_status=503), 503, "natural", 1),
    "reset before the first byte": (Faults(reset_after_tokens=0), 503, "upstream_error", 1),
    "reset mid-stream": (Faults(reset_after_tokens=3), None, BROKEN_OFF, 1),
    "hangs": (Faults(hang=True), None, "client_gone", 0),
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("how", BREAKS)
async def test_a_server_that_breaks_is_counted_and_holds_nothing(
    stack: Stack, how: str, request: pytest.FixtureRequest
) -> None:
    faults, status, cause, errors = BREAKS[how]
    if cause is BROKEN_OFF and status is None:
        if request.node.callspec.params["stack"] == "recommended":
            await stack.rely_on_records()
        else:
            cause, errors = "client_gone", 0
    before = await settled(stack)
    for server in stack.servers:
        server.break_with(faults)
    try:
        async with client_of(stack) as client:
            asked = completion(stream=True, max_tokens=20)
            posting = client.post(
                "/v1/completions", json=asked, timeout=aiohttp.ClientTimeout(total=1 if faults.hang else 20)
            )
            if status is None:
                with pytest.raises((TimeoutError, *CLIENT_BREAKS)):
                    async with posting as response:
                        await response.read()
            else:
                async with posting as response:
                    await response.read()  # to leave earlier would be another end
                    assert response.status == status
                    assert (SERVER_HEADER in response.headers) == (cause == "natural")  # or else Envoy answered
    finally:
        for server in stack.servers:
            server.break_with(HEALED)
    after = await settled(stack)
    counted = {c: after.total(END, cause=c) - before.total(END, cause=c) for c in CAUSES}
    assert counted == {c: float(c == cause) for c in CAUSES}
    assert after.total(ERROR) == before.total(ERROR) + errors
    model_server = after.total(ERROR, error_code="ModelServerError") - before.total(
        ERROR, error_code="ModelServerError"
    )
    assert model_server == errors


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_repeated_after_the_first_byte(stack: Stack) -> None:
    before = [server.recorder.total for server in stack.servers]
    for server in stack.servers:
        server.break_with(Faults(reset_after_tokens=3))
    try:
        asked = completion(stream=True, max_tokens=50)
        async with client_of(stack) as client, client.post("/v1/completions", json=asked) as response:
            assert response.status == 200
            with pytest.raises(CLIENT_BREAKS):
                await response.read()
    finally:
        for server in stack.servers:
            server.break_with(HEALED)
    assert sum(server.recorder.total for server in stack.servers) == sum(before) + 1
    await settled(stack)


# --- a mix of everything ------------------------------------------------------------------------------------------

ROUND = 36  # requests of one kind of weather at once


async def natural(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", json=completion(stream=True)) as response:
        await response.read()
    return "answered"


async def not_streamed(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", json=completion()) as response:
        await response.read()
    return "answered"


async def bodyless(client: aiohttp.ClientSession) -> str:
    async with client.get("/v1/models") as response:
        await response.read()
    return "answered"


async def unknown_model(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", json=completion(model="no-such-model")) as response:
        await response.read()
        return "answered"


async def malformed(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", data=b"{not json") as response:
        assert response.status == 400
    return "answered"


async def too_large(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", json=completion(prompt="x" * 70_000)) as response:
        assert response.status == 413
    return "answered"


async def leaves_before_the_bodys_end(client: aiohttp.ClientSession) -> str:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"model": '
        await asyncio.sleep(30)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.post("/v1/completions", data=body()), 0.3)
    return "left"


async def leaves_while_waiting(client: aiohttp.ClientSession) -> str:
    long = completion(prompt="a long prompt " * 3000, max_tokens=2000)
    try:
        await asyncio.wait_for(client.post("/v1/completions", json=long), 0.3)
    except TimeoutError:
        return "left"
    return "answered"  # by a server that is broken


async def leaves_mid_stream(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/completions", json=completion(stream=True, max_tokens=4000)) as response:
        await response.content.readany()
        response.close()
    return "left"


WAYS = [
    natural,
    not_streamed,
    bodyless,
    unknown_model,
    malformed,
    too_large,
    leaves_before_the_bodys_end,
    leaves_while_waiting,
    leaves_mid_stream,
]
WEATHER = [HEALED, Faults(error_status=500), Faults(reset_after_tokens=0), Faults(reset_after_tokens=2), HEALED]


@pytest.mark.parametrize("bootstrap", BOOTSTRAPS)
async def test_requests_that_end_in_every_way_leave_nothing_behind_even_when_envoy_is_killed(bootstrap: str) -> None:
    flags = ["--max-request-body", "64Ki", "--request-timeout", "2s", "--enable-grpc-stream-metrics"]
    options = {"report_interval": "300ms"} if bootstrap == "recommended" else {}
    async with (
        Stack([SLOW, SLOW], bootstrap=bootstrap, picker_flags=flags, bootstrap_options=options) as stack,
        client_of(stack) as client,
    ):

        async def one(number: int) -> str:
            try:
                return await WAYS[number % len(WAYS)](client)
            except (AssertionError, *CLIENT_BREAKS):
                return "broken"

        ends: Counter[str] = Counter()
        for faults in WEATHER:
            for server in stack.servers:
                server.break_with(faults)
            ends.update(await asyncio.gather(*(one(number) for number in range(ROUND))))
        assert set(ends) == {"answered", "left", "broken"}

        long = completion(stream=True, max_tokens=4000)
        streaming = await asyncio.gather(*(client.post("/v1/completions", json=long) for _ in range(50)))
        assert {response.status for response in streaming} == {200}
        page = await stack.picker_metrics()
        assert page.total("llm_d_epp_inflight_requests") >= 50
        ended = {cause: page.total(END, cause=cause) for cause in CAUSES}
        await asyncio.to_thread(stack.envoy.kill)
        after = await settled(stack)
        changed = {cause: after.total(END, cause=cause) - ended[cause] for cause in CAUSES}
        # Of those that were let go of, nothing is heard any more; the streams of others end with their connection.
        assert changed["client_gone"] + changed["lost"] >= 50
        await eventually(lambda: no_stream_is_open(stack))
        assert after.total(END) - after.total(END, cause="rejected") == after.total("llm_d_epp_request_total")
        assert "unexpected error" not in stack.picker.log()


async def no_stream_is_open(stack: Stack) -> bool:
    return (await stack.picker_metrics()).total("llm_d_epp_extproc_streams_inflight") == 0


async def test_a_killed_picker_costs_no_response_that_streams() -> None:
    async with Stack([SLOW, SLOW]) as stack, client_of(stack) as client:
        asked = completion(stream=True, max_tokens=30)
        streaming = await asyncio.gather(*(client.post("/v1/completions", json=asked) for _ in range(20)))
        await asyncio.gather(*(response.content.readany() for response in streaming))
        await stack.picker.kill()
        rests = await asyncio.gather(*(response.read() for response in streaming))
        assert all(rest.rstrip().endswith(b"data: [DONE]") for rest in rests)


async def test_more_requests_in_flight_than_envoys_default_breakers_allow_are_all_routed() -> None:
    """1,024 requests to a cluster is where Envoy stops unless its bootstrap says otherwise."""
    async with Stack(2) as stack, client_of(stack) as client:
        for server in stack.servers:
            server.break_with(Faults(hang=True))
        asking: list[asyncio.Task[Any]] = []

        async def all_have_arrived() -> bool:
            assert not any(task.done() for task in asking)
            return sum(server.recorder.total for server in stack.servers) == len(asking)

        for _ in range(22):  # in waves, since it is not about how fast they may come
            asking += [asyncio.create_task(client.post("/v1/completions", json=completion())) for _ in range(50)]
            await eventually(all_have_arrived)
        assert (await stack.picker_state())["ledger"]["streams"] == len(asking) == 1100  # none went past the picker
        for task in asking:
            task.cancel()
        await settled(stack)


# --- servers of which nothing current is known --------------------------------------------------------------------


async def test_a_server_of_which_nothing_is_known_is_no_favourite_and_one_that_is_known_again_is_used() -> None:
    small = EngineConfig(max_sequences=2)
    pool = [SimConfig(name=f"sim-{i}", seed=i, engine=small) for i in range(3)]
    async with Stack(pool) as stack, client_of(stack) as client, aiohttp.ClientSession() as direct:
        busy: dict[int, list[asyncio.Task[Any]]] = {}

        def burden(number: int) -> None:
            """Requests past the picker, so that it learns of them from the metrics page alone."""
            long = completion(max_tokens=8000)
            url = f"{stack.servers[number].url}/v1/completions"
            busy[number] = [asyncio.create_task(direct.post(url, json=long)) for _ in range(8)]

        def relieve(number: int) -> None:
            for task in busy.pop(number):
                task.cancel()

        async def ages() -> list[tuple[float | None, float | None]]:
            found = {e["address"]: e for e in (await stack.picker_state())["pool"]["endpoints"]}
            return [(found[a]["age_s"], found[a]["waiting_requests"]) for a in stack.addresses]

        async def when(fresh: set[int], queued: set[int]) -> None:
            async def so() -> bool:
                known = await ages()
                return {i for i, (age, _) in enumerate(known) if age is not None and age < 2.0} == fresh and {
                    i for i, (_, waiting) in enumerate(known) if i in fresh and waiting
                } == queued

            await eventually(so)

        async def chosen() -> set[str]:
            served = set()
            for number in range(12):
                async with client.post(
                    "/v1/completions", json=completion(prompt=f"{number}", max_tokens=1)
                ) as response:
                    served.add(response.headers[SERVER_HEADER])
            return served

        try:
            stack.servers[0].break_with(Faults(metrics=MetricsFault.HANG))
            burden(2)
            await when(fresh={1, 2}, queued={2})
            assert await chosen() == {"sim-1"}

            stack.servers[0].break_with(HEALED)
            burden(1)
            await when(fresh={0, 1, 2}, queued={1, 2})
            assert await chosen() == {"sim-0"}

            stack.servers[0].break_with(Faults(metrics=MetricsFault.HANG))  # it froze while it looked idle
            relieve(2)
            await when(fresh={1, 2}, queued={1})
            assert await chosen() == {"sim-2"}
        finally:
            for number in list(busy):
                relieve(number)


async def test_a_server_that_is_gone_draws_no_requests_while_the_proxy_has_others_answer_them() -> None:
    """Clients see nothing of it, and nothing stays with it, so that by load alone it would be the best of all."""
    pool = [SimConfig(name=f"sim-{i}", seed=i) for i in range(3)]
    async with Stack(pool, picker_flags=["--profile", "headroom"]) as stack, client_of(stack) as client:
        gone = stack.servers[0].address
        await stack.servers[0].__aexit__(None, None, None)

        async def asked(number: int) -> None:
            body = completion(prompt=f"{number} once upon a time " * 60, stream=True)
            async with client.post("/v1/completions", json=body, headers={"x-slo-ttft-ms": "2000"}) as response:
                assert response.status == 200
                await response.read()

        for first in range(0, 80, 4):
            await asyncio.gather(*map(asked, range(first, first + 4)))
        chosen = [d["endpoints"][0]["address"] for d in (await stack.picker_state())["decisions"]]
        assert len(chosen) == 80
        assert chosen[:60].count(gone) <= 6, "the last sixty, of which a fair share would be twenty"
