"""`epp serve --workers 2` behind the real Envoy: workers decide alike, and none of them is missed when it dies."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from load import Site, load, metrics_of
from stack import eventually as within

from epp.sim.picker_process import PickerProcess

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.usefixtures("envoy_binary"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: --workers is refused elsewhere"),
]

FLAGS = ["--transport", "lean", "--workers", "2"]
REQUESTS, RESTARTS = "llm_d_epp_request_total", "llm_d_epp_worker_restarts_total"
PER_SERVER = 20  # requests that a server may have at once: three connections of 16 in all
CONFIG = f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: concurrency-detector
  parameters: {{maxConcurrency: {PER_SERVER}}}
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: concurrency-detector
  - pluginRef: prefix-cache-scorer
  - pluginRef: max-score-picker
"""
ASKED = {"model": "m", "prompt": "there was a server that had seen it all before. " * 80, "stream": True}


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    await within(holds, timeout_s=60.0)


async def ask(site: Site) -> aiohttp.ClientResponse:
    """Returns with the headers of the answer."""
    return await site.client.post(f"{site.envoy.url}/v1/completions", json=ASKED)


async def pids_of(picker: PickerProcess) -> list[int]:
    return [worker["pid"] for worker in (await picker.state())["workers"]]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_workers_know_what_the_other_has_in_flight_and_cached_and_end_with_their_parent() -> None:
    """As a gateway, so that streams stay open and Envoy needs three connections: each worker gets one at least."""
    flags = [*FLAGS, "--config-text", CONFIG]
    async with load(bootstrap="gateway", behaviours=["stream", "stream"], flags=flags) as site:
        picker = site.pickers[0]
        first = await ask(site)

        async def both_know_the_prompt() -> bool:
            plugins = json.loads(await picker.ask("/debug/plugins/state"))["plugins"]
            workers = plugins["approx-prefix-cache-producer"]["workers"].values()
            return all(worker["state"]["blocks"] > 0 for worker in workers)

        await eventually(both_know_the_prompt)
        # One after the other: of two decisions at the very same moment, each may see the place that the other takes.
        streams = [first, *[await ask(site) for _ in range(2 * PER_SERVER - 1)]]
        refused = [await ask(site) for _ in range(6)]
        assert [response.status for response in streams] == [200] * 2 * PER_SERVER
        assert [response.status for response in refused] == [429] * 6

        state = await picker.state()
        by_worker = [worker["ledger"]["streams"] for worker in state["workers"]]
        assert sum(by_worker) == state["ledger"]["streams"] == 2 * PER_SERVER
        assert min(by_worker) > 0, "one worker had all streams, and nothing is shown"
        in_flight = [endpoint["in_flight_requests"] for endpoint in state["pool"]["endpoints"]]
        assert in_flight == [PER_SERVER, PER_SERVER]
        page = await metrics_of(picker)
        assert page.total(REQUESTS) == page.total("llm_d_epp_request_running") == 2 * PER_SERVER
        assert page.total("llm_d_epp_inflight_requests") == 2 * PER_SERVER
        assert sum(worker["requests"] for worker in state["workers"]) == 2 * PER_SERVER

        *later, oldest = [decision for decision in state["decisions"] if "endpoints" in decision]
        knowing = oldest["endpoints"][0]["id"]
        assert {decision["worker"] for decision in later} == {0, 1}
        for decision in later:
            scores = {best["endpoint"]: best["scores"] for best in decision["profiles"]["default"]["best"]}
            assert scores.get(knowing, {"prefix-cache-scorer": 1.0})["prefix-cache-scorer"] == 1.0
        for worker in (0, 1):
            asked = next(d["request"]["x_request_id"] for d in later if d["worker"] == worker)
            alone = json.loads(await picker.ask(f"/debug/state?id={asked}"))["decisions"]
            assert [(d["worker"], d["request"]["x_request_id"]) for d in alone] == [(worker, asked)]
        few = json.loads(await picker.ask("/debug/state?decisions=3"))["decisions"]
        assert [d["request"] for d in few] == [d["request"] for d in state["decisions"][:3]]

        site.go_on()
        for response in streams:
            await response.read()
        await site.idle(picker)

        pids = await pids_of(picker)
        await picker.kill()
        await eventually(lambda: asyncio.to_thread(lambda: not any(map(lives, pids))))


async def test_a_worker_that_is_killed_costs_no_request_and_the_end_is_in_good_order() -> None:
    flags = [*FLAGS, "--drain-timeout", "500ms"]
    async with load(behaviours=["stream", "stream"], flags=flags) as site:
        picker = site.pickers[0]
        site.go_on()
        seen: list[float] = []

        async def routed(at_least: float) -> bool:
            """No counter ever goes back, whoever dies."""
            seen.append((await metrics_of(picker)).total(REQUESTS))
            return seen[-1] >= at_least

        async with site.paced(60) as answers:
            await eventually(lambda: routed(30))
            killed = (await pids_of(picker))[0]
            os.kill(killed, signal.SIGKILL)

            async def is_replaced() -> bool:
                await routed(0)
                worker = (await picker.state())["workers"][0]
                return bool(worker["ready"] and worker["restarts"] == 1)

            await eventually(is_replaced)
            replaced_at = seen[-1]
            await eventually(lambda: routed(replaced_at + 60))
        assert answers.failed == []
        assert seen == sorted(seen)
        page = await site.idle(picker)
        assert (page.total(RESTARTS, worker="0"), page.total(RESTARTS, worker="1")) == (1, 0)
        assert picker.log().count(f"worker 0 (process {killed}) ended: killed by SIGKILL") == 1

        for server in site.servers:
            server.go_on.clear()
        streams = await site.open_streams(20)
        pids = await pids_of(picker)
        await picker.signal(signal.SIGTERM)
        await eventually(lambda: asyncio.to_thread(lambda: '"message":"draining' in picker.log()))
        answered = asyncio.gather(*(site.ask(answers) for _ in range(5)))  # still served
        await eventually(lambda: asyncio.to_thread(lambda: '"message":"closing' in picker.log()))
        site.go_on()
        await site.finish(streams)
        await answered
        assert await picker.wait() == 0
        assert answers.failed == []
        assert not any(map(lives, pids))
        assert picker.log().rstrip().endswith("}")
        assert [picker.log().count(f'"message":"{line}') for line in ("draining", "closing", "stopped")] == [1, 1, 1]
        assert '"level":"error"' not in picker.log()
