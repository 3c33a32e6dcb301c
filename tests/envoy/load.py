"""Pickers and servers under load behind the real Envoy, and what has to be true once the load is gone.

async with load(pickers=2) as site:
    async with site.paced(100) as answers:      # requests at 100/s, until the block is left
        await site.pickers[0].terminate()
    assert answers.failed == []
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rig import DROPPED_REASON, STREAM
from scripted_server import CHUNKS, ScriptedServer
from stack import Metrics, eventually

from epp.sim.bootstraps import Bootstrap, render_bootstrap
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess

ASKED = {"model": "m", "prompt": "once upon a time", "stream": True}
WAVE = 50  # connections that are opened at once: it is not about how fast they may come
IDLE_GAUGES = ("request_running", "inflight_requests", "inflight_tokens", "extproc_streams_inflight")


@dataclass(frozen=True)
class Footprint:
    """What a picker's process holds: asyncio tasks and resident memory."""

    tasks: int
    resident_bytes: int


@dataclass
class Answers:
    """What became of requests: how many were asked and served, and of each other one its status and reason, or its
    exception."""

    asked: int = 0
    served: int = 0
    failed: list[tuple[Any, ...]] = field(default_factory=list)


@dataclass
class Site:
    envoy: EnvoyProxy
    pickers: list[PickerProcess]
    servers: list[ScriptedServer]
    client: aiohttp.ClientSession

    async def ask(self, answers: Answers, method: str = "POST") -> None:
        body = ASKED if method == "POST" else None
        answers.asked += 1
        try:
            async with self.client.request(method, f"{self.envoy.url}/v1/completions", json=body) as response:
                await response.read()
                if response.status == 200:
                    answers.served += 1
                else:
                    answers.failed.append((response.status, response.headers.get(DROPPED_REASON)))
        except (aiohttp.ClientError, TimeoutError) as error:
            answers.failed.append((type(error).__name__,))

    @asynccontextmanager
    async def paced(self, per_s: float) -> AsyncIterator[Answers]:
        """Ask at this pace, however long answers take, while the block runs; return when all are answered."""
        answers, asking, over = Answers(), set[asyncio.Task[None]](), asyncio.Event()

        async def pace() -> None:
            loop = asyncio.get_running_loop()
            next_s = loop.time()
            while not over.is_set():
                asking.add(asyncio.create_task(self.ask(answers)))
                next_s += 1 / per_s
                await asyncio.sleep(max(0.0, next_s - loop.time()))

        pacing = asyncio.create_task(pace())
        try:
            yield answers
        finally:
            over.set()
            await asyncio.gather(pacing)
            await asyncio.gather(*asking)

    async def open_streams(self, number: int) -> list[aiohttp.ClientResponse]:
        """Responses of which the first event has come; the rest comes when the servers may go on."""
        opened: list[aiohttp.ClientResponse] = []
        while len(opened) < number:
            wave = min(WAVE, number - len(opened))
            opened += await asyncio.gather(
                *(self.client.post(f"{self.envoy.url}/v1/completions", json=ASKED) for _ in range(wave))
            )
        assert {response.status for response in opened} == {200}
        return opened

    def go_on(self) -> None:
        for server in self.servers:
            server.go_on.set()

    async def finish(self, streams: Sequence[aiohttp.ClientResponse]) -> None:
        """All streams come to their end, whole."""
        self.go_on()
        for response in streams:
            assert (await response.read()).endswith(STREAM[len(CHUNKS[0]) :])
        for server in self.servers:
            server.go_on.clear()

    async def rely_on_records(self) -> None:
        """Ask until the picker knows that Envoy's access log comes."""

        async def relied_on() -> bool:
            async with self.client.get(f"{self.envoy.url}/v1/models") as response:
                await response.read()
            return (await metrics_of(self.pickers[0])).total("llm_d_epp_access_log_relied_on") == 1

        await eventually(relied_on, timeout_s=30.0)

    # --- what is left of it ---------------------------------------------------------------------------------------

    async def is_idle(self, picker: PickerProcess) -> bool:
        page = await metrics_of(picker)
        return not any(page.total(f"llm_d_epp_{gauge}") for gauge in IDLE_GAUGES)

    async def idle(self, picker: PickerProcess) -> Metrics:
        """The picker's metrics, once nothing is in flight there."""
        await eventually(lambda: self.is_idle(picker), timeout_s=30.0)
        ledger = (await picker.state())["ledger"]
        assert not any(ledger.values()), ledger
        assert "unexpected error" not in picker.log(), picker.log()[-3000:]
        return await metrics_of(picker)

    async def footprint(self, picker: PickerProcess) -> Footprint:
        """Of an idle picker."""
        page = await self.idle(picker)
        tasks = (await picker.state())["process"]["tasks"]
        return Footprint(tasks, int(page.total("process_resident_memory_bytes")))


async def metrics_of(picker: PickerProcess) -> Metrics:
    return Metrics((await picker.ask("/metrics")).decode())


@asynccontextmanager
async def load(
    *,
    bootstrap: str = "recommended",
    pickers: int = 1,
    behaviours: Sequence[str] = ("good", "good"),
    fail_open: bool = True,
    flags: Sequence[str] = (),
    health_interval_s: float | None = None,
    patch: Callable[[Bootstrap], None] | None = None,
    **bootstrap_options: Any,
) -> AsyncIterator[Site]:
    """
    Args:
        behaviours: one for each server, see `ScriptedServer`.
        flags: more flags for each picker.
        health_interval_s: between Envoy's checks of a picker; `None`: as shipped.
        patch: changes Envoy's configuration before it is used.
        bootstrap_options: more of `render_bootstrap`.
    """
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedServer(behaviour)) for behaviour in behaviours]
        endpoints = [server.address for server in servers]
        arguments = ["--endpoints", ",".join(endpoints), "--secure-serving=false", "--enable-grpc-stream-metrics"]
        processes = []
        for _ in range(pickers):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-load-")))
            processes.append(await stack.enter_async_context(PickerProcess(folder, [*arguments, *flags])))
        config = render_bootstrap(
            bootstrap,
            epp_address=[f"127.0.0.1:{process.ports['grpc']}" for process in processes],
            epp_tls=False,
            endpoints=endpoints,
            fail_open=fail_open,
            **bootstrap_options,
        )
        if patch is not None:
            patch(config)
        if health_interval_s is not None:
            (picker,) = (c for c in config["static_resources"]["clusters"] if c["name"] == "picker")
            interval = f"{health_interval_s}s"
            picker["health_checks"][0] |= {"interval": interval, "no_traffic_interval": interval}
        envoy = await stack.enter_async_context(EnvoyProxy(config))
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        yield Site(envoy, processes, servers, client)
