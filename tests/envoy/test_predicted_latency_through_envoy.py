"""Predicted latency through the real Envoy: targets, new and failing servers, a picker that comes back."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from stack import Metrics, Stack, eventually, write_endpoints

from epp.sim.config import EngineConfig, SimConfig
from epp.sim.faults import Faults
from epp.sim.server import SERVER_HEADER, SimServer

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

# The profile that llm-d's chart makes for predicted latency, its pool read from a file. Tests count predictions, and a
# machine that pauses must not have some of them left out as too long.
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters:
    scheme: "http"
    path: "/metrics"
    insecureSkipVerify: true
- type: core-metrics-extractor
- type: predicted-latency-producer
  parameters: {budgetMs: 60000}
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters:
    affinityThreshold: 0.99
    ttftSource: latencyPredictor
    maxTTFTPenaltyMs: 5000
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters:
    affinityThreshold: 0.80
    ttftSource: latencyPredictor
    maxTTFTPenaltyMs: 5000
- type: latency-scorer
- type: weighted-random-picker
- type: slo-headroom-tier-filter
- type: latency-slo-admitter
- type: file-discovery
  parameters: {path: "%s", watchFile: true}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: predicted-latency-producer
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
dataLayer:
  discovery: {pluginRef: file-discovery}
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
COMPLETIONS = "/v1/completions"
# A small cache, so that a few requests use a share of it that is worth mentioning.
SIZE = EngineConfig(kv_blocks=1024)
REASONABLE = {"x-slo-ttft-ms": "20000", "x-slo-tpot-ms": "2000"}
IMPOSSIBLE = {"x-slo-ttft-ms": "1"}
BATCH = {"x-llm-d-inference-objective": "batch"}
NUMBERS = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("latency")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(folder: Path) -> AsyncIterator[Stack]:
    """A gateway, whose Envoy goes wherever the picker says. Over a Unix socket, so that it finds a picker that comes
    back where it was."""
    endpoints_file = folder / "endpoints.json"
    flags = ["--objective", "batch=-1", "--model-file", str(folder / "latency.model")]
    flags += ["--refresh-prometheus-metrics-interval", "200ms"]
    async with Stack(
        [SimConfig(name=f"sim-{i}", seed=i, speed=2.0, engine=SIZE) for i in range(3)],
        bootstrap="gateway",
        config_text=CONFIG % endpoints_file,
        endpoints_file=endpoints_file,
        picker_flags=flags,
        unix_socket=True,
    ) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(stack.url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        yield client
    await eventually(stack.is_idle)


def asked(**fields: Any) -> dict[str, Any]:
    """A stream whose prompt has no part in common with any other's."""
    prompt = f"{next(NUMBERS)} " * 100
    return {"model": SimConfig().model, "prompt": prompt, "max_tokens": 10, "stream": True, **fields}


async def send(client: aiohttp.ClientSession, requests: int, headers: dict[str, str]) -> list[tuple[int, str]]:
    """Statuses and servers, in the order of dispatch; a handful at a time."""
    turn = asyncio.Semaphore(6)

    async def one() -> tuple[int, str]:
        async with turn, client.post(COMPLETIONS, json=asked(), headers=headers) as response:
            await response.read()
            return response.status, response.headers.get(SERVER_HEADER, "")

    return await asyncio.gather(*(one() for _ in range(requests)))


async def settled(stack: Stack) -> Metrics:
    """The picker's metrics, once it knows that nothing is in flight."""
    await eventually(stack.is_idle)
    return await stack.picker_metrics()


async def ready(stack: Stack) -> bool:
    told = (await stack.picker_state())["predictor"]["ready"]
    return bool(told["ttft"] and told["tpot"])


async def warm(stack: Stack, client: aiohttp.ClientSession) -> None:
    for _ in range(10):
        if await ready(stack):
            return
        await send(client, 30, REASONABLE)
    raise AssertionError("not ready after 300 requests")


async def last_notes(stack: Stack) -> Sequence[str]:
    decisions = (await stack.picker_state())["decisions"]
    return [d["notes"].get("predicted-latency-producer", "") for d in decisions]


async def test_requests_are_served_before_there_are_predictions_and_predicted_from_then_on(
    stack: Stack, client: aiohttp.ClientSession
) -> None:
    assert not await ready(stack)
    assert {status for status, _ in await send(client, 12, REASONABLE)} == {200}
    early = await settled(stack)
    assert early.total("llm_d_epp_prediction_fallback_total", reason="not_ready") == 12
    assert early.total("llm_d_epp_request_predicted_ttft_seconds_count") == 0
    assert await last_notes(stack) == ["no prediction: not ready"] * 12

    await warm(stack, client)
    before = await settled(stack)
    assert {status for status, _ in await send(client, 60, REASONABLE)} == {200}

    async def counted() -> bool:
        return (await stack.picker_metrics()).total("llm_d_epp_predictor_error_ratio", target="tpot") > 0

    await eventually(counted)
    page = await settled(stack)
    for target in ("ttft", "tpot"):
        assert page.total("llm_d_epp_predictor_ready", target=target) == 1
        assert page.total("llm_d_epp_predictor_error_ratio", target=target) > 0
        for kind in ("predicted", "served"):
            name = f"llm_d_epp_request_{kind}_{target}_seconds_count"
            assert page.total(name) - before.total(name) == 60
        slo = {"objective": "", "type": target}
        assert page.total("llm_d_epp_slo_requests_total", **slo) >= 72
        assert page.total("llm_d_epp_slo_missed_total", **slo) == 0
    served = (await stack.picker_state())["predictor"]["served"]
    assert served["ttft"]["samples"] >= 60
    assert served["ttft"]["median_absolute_ratio"] < 1.0
    assert any("ttft " in note and "version" in note for note in await last_notes(stack))


async def test_targets_that_were_missed_are_counted(stack: Stack, client: aiohttp.ClientSession) -> None:
    await warm(stack, client)
    before = await settled(stack)
    assert {status for status, _ in await send(client, 5, IMPOSSIBLE)} == {200}
    page = await settled(stack)
    for family in ("slo_requests_total", "slo_missed_total"):
        name = f"llm_d_epp_{family}"
        assert page.total(name, type="ttft") - before.total(name, type="ttft") == 5


async def test_sheddable_requests_that_nobody_can_serve_in_time_are_refused_and_others_are_not(
    stack: Stack, client: aiohttp.ClientSession
) -> None:
    await warm(stack, client)
    async with AsyncExitStack() as running:
        held = Counter[str]()
        for _ in range(40):  # until each server has work for a while
            if len(held) == 3 and min(held.values()) >= 2:
                break
            response = await running.enter_async_context(client.post(COMPLETIONS, json=asked(max_tokens=3000)))
            held[response.headers[SERVER_HEADER]] += 1
            await response.content.readany()
        assert len(held) == 3

        async def busy() -> bool:
            endpoints = (await stack.picker_state())["pool"]["endpoints"]
            return all((e["kv_cache_usage_ratio"] or 0) > 0.02 and e["running_requests"] for e in endpoints)

        await eventually(busy)
        async with client.post(COMPLETIONS, json=asked(), headers=BATCH | IMPOSSIBLE) as refused:
            told = await refused.json()
        assert refused.status == 429
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        assert refused.headers["retry-after"] == "1"
        assert SERVER_HEADER not in refused.headers
        assert "latency target" in told["error"]["message"]
        for served in (BATCH, BATCH | REASONABLE, IMPOSSIBLE):
            async with client.post(COMPLETIONS, json=asked(max_tokens=1), headers=served) as response:
                assert response.status == 200, served
        page = await stack.picker_metrics()
        assert page.total("llm_d_epp_admission_denied_total", plugin_type="latency-slo-admitter") == 1
    await eventually(stack.is_idle)


async def test_a_server_that_fails_fast_does_not_attract_traffic(stack: Stack, client: aiohttp.ClientSession) -> None:
    await warm(stack, client)
    broken = stack.servers[1]
    broken.break_with(Faults(error_status=500))
    try:
        answers = await send(client, 120, {})
    finally:
        broken.break_with(Faults())
    sent = Counter(server for _, server in answers)
    assert 1 <= sent["sim-1"] < 0.15 * 120
    assert min(sent["sim-0"], sent["sim-2"]) > 0.25 * 120
    page = await settled(stack)
    assert page.total("llm_d_epp_prediction_samples_dropped_total", reason="status") == sent["sim-1"]


async def test_a_server_that_joins_is_tried_and_gets_its_share(
    stack: Stack, client: aiohttp.ClientSession, folder: Path
) -> None:
    await warm(stack, client)
    async with SimServer(SimConfig(name="sim-new", seed=9, speed=2.0, engine=SIZE)) as joined:
        pool = [*stack.addresses, joined.address]
        write_endpoints(folder / "endpoints.json", pool)
        await has_pool(stack, pool)
        first = await send(client, 40, {})
        for _ in range(25):  # until it is a server like the others
            if joined.recorder.total >= 20:
                break
            await send(client, 40, {})
        later = await send(client, 160, {})
        write_endpoints(folder / "endpoints.json", stack.addresses)
        await has_pool(stack, stack.addresses)
    page = await stack.picker_metrics()
    assert page.total("llm_d_epp_slow_start_requests_total") >= 1
    tried, share = (Counter(server for _, server in answers)["sim-new"] for answers in (first, later))
    assert tried <= 15
    assert 0.1 * 160 < share < 0.5 * 160
    assert {status for status, _ in [*first, *later]} == {200}


async def has_pool(stack: Stack, addresses: Sequence[str]) -> None:
    async def holds() -> bool:
        endpoints = (await stack.picker_state())["pool"]["endpoints"]
        return {e["address"] for e in endpoints} == set(addresses)

    await eventually(holds)


async def test_what_was_learned_survives_a_restart_of_the_picker(stack: Stack, client: aiohttp.ClientSession) -> None:
    await warm(stack, client)
    while (await stack.picker_state())["predictor"]["buffer_rows"] < 320:  # enough for trees
        await send(client, 60, {})

    async def trained() -> bool:
        return (await stack.picker_state())["predictor"]["last_training"] is not None

    await eventually(trained, timeout_s=40.0)
    await eventually(stack.is_idle)
    before = (await stack.picker_state())["predictor"]
    await stack.picker.stop()
    await stack.picker.start()
    after = (await stack.picker_state())["predictor"]
    assert after["ready"] == before["ready"]
    assert after["model_version"] == before["model_version"]
    assert after["buffer_rows"] == before["buffer_rows"]
    assert set(after["trees"]) == set(before["trees"])
    assert f"model version {before['model_version']} restored" in stack.picker.log()

    async def serves() -> bool:
        answers = await send(client, 4, REASONABLE)
        page = await stack.picker_metrics()
        return {s for s, _ in answers} == {200} and page.total("llm_d_epp_request_predicted_ttft_seconds_count") > 0

    await eventually(serves)
    page = await stack.picker_metrics()
    assert page.total("llm_d_epp_prediction_fallback_total", reason="not_ready") == 0
