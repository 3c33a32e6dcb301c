"""Servers that answer slowly, with garbage, or with yesterday's metrics. For those that are gone, reset or hang see
test_servers_that_break.py."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from load import ASKED, Site, load
from rig import STREAM
from scripted_server import BINARY, RAW
from stack import Stack, eventually

from epp.endings import EndCause
from epp.sim.faults import Faults, MetricsFault

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]

END = "llm_d_epp_request_end_total"
CAUSES = [cause.value for cause in EndCause]
BOOTSTRAPS = ("recommended", "gateway")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BOOTSTRAPS)
async def site(request: pytest.FixtureRequest, envoy_binary: Path) -> AsyncIterator[Site]:
    async with load(bootstrap=request.param) as site:
        if request.param == "recommended":
            await site.rely_on_records()
        yield site


async def ask(site: Site, behaviour: str) -> tuple[int, bytes | None]:
    """Status and body; `None` for one that was cut short."""
    for server in site.servers:
        server.behaviour = behaviour
        server.go_on.clear()
    async with site.client.post(f"{site.envoy.url}/v1/completions", json=ASKED) as response:
        try:
            first = await response.content.readany()
            site.go_on()
            return response.status, first + await response.read()
        except aiohttp.ClientPayloadError:
            return response.status, None


async def ends(site: Site) -> dict[str, float]:
    page = await site.idle(site.pickers[0])
    return {cause: page.total(END, cause=cause) for cause in CAUSES}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("garbage", list(RAW))
async def test_garbage_becomes_an_error_or_a_cut_and_holds_nothing(
    site: Site, garbage: str, request: pytest.FixtureRequest
) -> None:
    bootstrap = request.node.callspec.params["site"]
    before = await ends(site)
    status, body = await ask(site, garbage)
    after = await ends(site)
    (cause,) = [cause for cause in CAUSES if after[cause] != before[cause]]
    assert after[cause] == before[cause] + 1
    match garbage:
        case "invalid chunk" | "too short":
            assert (status, body) == (200, None)
            # After the first byte it is Envoy's access log that says whose fault it was.
            assert cause == ("upstream_error" if bootstrap == "recommended" else "client_gone")
        case "invalid chunk at once":  # it depends on whether the headers were on their way to the client
            assert status == 502 or (status, body) == (200, None)
            assert cause in ("client_gone", "upstream_error")
        case _:
            assert (status, cause) == (502, "upstream_error")
            assert b"api_error" in (body or b"")
            assert await ask(site, garbage) == (status, body)
            await ends(site)
            told = [line for line in site.pickers[0].log().splitlines() if "a request that was sent to" in line]
            assert all("the proxy answered 502" in line for line in told)
            assert 1 <= len(told) <= len(site.servers)  # once for each that it was sent to


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("behaviour", "sent"), [("binary", BINARY), ("dribbles", STREAM)])
async def test_what_is_odd_and_whole_passes_unchanged(site: Site, behaviour: str, sent: bytes) -> None:
    before = await ends(site)
    assert await ask(site, behaviour) == (200, sent)
    assert (await ends(site))["natural"] == before["natural"] + 1


# --- signals ----------------------------------------------------------------------------------------------------------

COUNTS_ITS_OWN = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: active-request-scorer
- type: kv-cache-utilization-scorer
- type: inflight-load-producer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  - pluginRef: kv-cache-utilization-scorer
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(envoy_binary: Path) -> AsyncIterator[Stack]:
    async with Stack(2, config_text=COUNTS_ITS_OWN) as stack:
        yield stack


@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_frozen_at_idle_does_not_draw_all_requests_where_those_in_flight_are_counted(
    stack: Stack,
) -> None:
    stack.servers[0].break_with(Faults(metrics=MetricsFault.FROZEN))
    async with aiohttp.ClientSession() as client:
        asked = {"model": stack.servers[0].config.model, "prompt": "x", "max_tokens": 8000, "stream": True}
        streams = []
        for _ in range(12):
            streams.append(await client.post(f"{stack.url}/v1/completions", json=asked))
            await asyncio.sleep(0.05)  # the pages are read in between
        assert [server.engine.metrics().running for server in stack.servers] == [6, 6]
        for response in streams:
            response.close()
        await eventually(stack.is_idle)
    stack.servers[0].break_with(Faults())


@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_that_fails_is_told_once_with_its_cause_and_once_when_it_is_back(stack: Stack) -> None:
    def lines(words: str) -> int:
        told = [line for line in stack.picker.log().splitlines() if words in line]
        return sum(stack.servers[0].address.replace(":", "-") in line for line in told)

    async def failing() -> list[str]:
        endpoints = (await stack.picker_state())["pool"]["endpoints"]
        return [e["address"] for e in endpoints if e["scrape_error"] is not None]

    async def one_fails() -> bool:
        return await failing() == [stack.servers[0].address] and lines("fails: ") == 1

    async def is_back() -> bool:
        return lines("works again") == 1

    stack.servers[0].break_with(Faults(metrics=MetricsFault.GARBAGE))
    await eventually(one_fails)
    await asyncio.sleep(0.5)  # and is read again, in vain
    assert await one_fails()
    stack.servers[0].break_with(Faults())
    await eventually(is_back)
    assert lines("fails: ") == 1
