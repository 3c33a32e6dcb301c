"""Who takes part in `benchmarks.routing`, and one run over HTTP: servers, what stands before them, and the requests.

Every run has servers of its own, with empty caches. Times count from when a request was due.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks._report import cpu_seconds
from benchmarks.load.measuring import family
from benchmarks.load.rig import bootstrap_without_picker
from benchmarks.load.routers import ROUTERS, installed, running
from epp.lab.experiment import LabRequest, Served
from epp.lab.policies.catalogue import POLICIES
from epp.lab.prompts import text_of
from epp.latency.types import Target
from epp.sim.bootstraps import render_bootstrap
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess
from epp.sim.traffic import Result, run_traffic
from epp.sim.workload import PlannedRequest

MODEL = "bench"  # which `running` asks for
POOL = ("8b-h100", "8b-h100", "8b-a100", "8b-a100")
KV_BLOCKS = 7_500  # of 16 tokens: a server keeps the heads of all tenants only just, and little beside them
LAG_EVERY_S = 0.01
TIMEOUT_S = 240.0
_LEAST_REQUEST = "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"
_LETTERS = bytes(ord("0") + i % 64 for i in range(256))


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy over HTTP, and what the lab calls the same.

    Attributes:
        route: `picker` with the lab's configuration, `envoy` with a balancer of its own, or the name of a router.
        option: the router's policy, or Envoy's balancer.
    """

    name: str
    lab_policy: str
    route: str
    option: str = ""


CONTESTANTS = (
    Contestant("ours", "ours", "picker"),
    Contestant("llm-d-default", "llm-d-default", "picker"),
    Contestant("envoy-round-robin", "round-robin", "envoy", "round_robin"),
    Contestant("envoy-least-request", "least-requests", "envoy", "least_request"),
    Contestant("sglang-cache-aware", "cache-aware", "sglang-router", "cache_aware"),
    Contestant("sglang-power-of-two", "power-of-two", "sglang-router", "power_of_two"),
    Contestant("smg-cache-aware", "cache-aware", "smg", "cache_aware"),
    Contestant("smg-least-load", "least-load", "smg", "least_load"),
)


# --- servers and what stands before them ------------------------------------------------------------------------------


@asynccontextmanager
async def servers(speed: float) -> AsyncIterator[tuple[list[str], list[int]]]:
    """Their addresses and processes: new ones, with empty caches."""
    processes = []
    try:
        for number, hardware in enumerate(POOL):
            command = [sys.executable, "-m", "epp.sim.server", "--hardware", hardware, "--speed", str(speed)]
            command += ["--kv-blocks", str(KV_BLOCKS), "--model", MODEL, "--name", f"{hardware}-{number}"]
            command += ["--seed", str(number)]
            # Routers try HTTP/2 first, and each time aiohttp prints a traceback.
            started = asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            processes.append(await started)
        lines = [await asyncio.wait_for(p.stdout.readline(), 60.0) for p in processes if p.stdout is not None]
        yield [json.loads(line)["address"] for line in lines], [p.pid for p in processes]
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@asynccontextmanager
async def data_path(contestant: Contestant, addresses: Sequence[str]) -> AsyncIterator[tuple[str, list[int]]]:
    """Where requests go, and the processes between client and servers. Raises `LoadError`."""
    async with AsyncExitStack() as stack:
        if contestant.route == "picker":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-routing-")))
            flags = ["--endpoints", ",".join(addresses), "--secure-serving=false"]
            flags += ["--config-text", POLICIES[contestant.lab_policy].config_text]
            picker = await stack.enter_async_context(PickerProcess(folder, flags))
            bootstrap = render_bootstrap(
                epp_address=f"127.0.0.1:{picker.ports['grpc']}", epp_tls=False, endpoints=addresses
            )
            envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
            yield envoy.url, [envoy.pid, *family(picker.pid)]
        elif contestant.route == "envoy":
            bootstrap = bootstrap_without_picker(addresses)
            if contestant.option == "least_request":
                _balance_by_least_request(bootstrap)
            envoy = await stack.enter_async_context(EnvoyProxy(bootstrap))
            yield envoy.url, [envoy.pid]
        else:
            router = next(router for router in ROUTERS if router.name == contestant.route)
            python = installed(router, lambda text: print(text, file=sys.stderr))
            started = running(router, python, addresses, policy=contestant.option)
            port, pids = stack.enter_context(started)
            yield f"http://127.0.0.1:{port}", pids


def _balance_by_least_request(bootstrap: dict[str, Any]) -> None:
    """Over all servers, not over two by chance: that is what the lab's policy does."""
    (cluster,) = bootstrap["static_resources"]["clusters"]
    policy = {"@type": _LEAST_REQUEST, "selection_method": "FULL_SCAN"}
    extension = {"name": "envoy.load_balancing_policies.least_request", "typed_config": policy}
    cluster["load_balancing_policy"] = {"policies": [{"typed_extension_config": extension}]}


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """
    Attributes:
        served: as in the lab, in the schedule's order.
        cores: CPU used by role, in cores; `all` is of the machine's cores.
        lag_p99_ms: how late this process, which sends and takes the time, was woken.
    """

    served: list[Served]
    cores: Mapping[str, float]
    lag_p99_ms: float


async def over_http(contestant: Contestant, requests: Sequence[LabRequest], speed: float) -> Run:
    """Raises `LoadError` if what stands between client and servers does not start."""
    async with servers(speed) as (addresses, server_pids), data_path(contestant, addresses) as (url, path_pids):
        roles: dict[str, Callable[[], float]] = {
            "servers": lambda: sum(map(cpu_seconds, server_pids)),
            "path": lambda: sum(map(cpu_seconds, path_pids)),
            "load": time.process_time,
        }
        before = {role: read() for role, read in roles.items()}
        started_s = time.monotonic()
        lags_s: list[float] = []
        watch = asyncio.create_task(_watch_lag(lags_s))
        results = await run_traffic(url, [planned(r) for r in requests], concurrency=2_000, timeout_s=TIMEOUT_S)
        watch.cancel()
        took_s = time.monotonic() - started_s
        cores = {role: (read() - before[role]) / took_s for role, read in roles.items()}
    lag_ms = sorted(lags_s)[int(0.99 * len(lags_s))] * 1e3
    return Run([served_of(i, r) for i, r in enumerate(results)], cores, lag_ms)


async def _watch_lag(lags_s: list[float]) -> None:
    while True:
        asked_s = time.monotonic()
        await asyncio.sleep(LAG_EVERY_S)
        lags_s.append(time.monotonic() - asked_s - LAG_EVERY_S)


def planned(request: LabRequest) -> PlannedRequest:
    """The lab's request for the wire: the same tokens as text."""
    body = {
        "model": MODEL,
        "prompt": text_of(request.prompt).translate(_LETTERS).decode(),
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", **request.headers}
    return PlannedRequest(request.at_s, "completions", True, None, headers, orjson.dumps(body))


def served_of(number: int, result: Result) -> Served:
    served = Served(number, result.planned.at_s, result.server, status=result.status, streamed=True)
    if result.error is not None:
        served.status = result.status if result.status and result.status >= 300 else None
        return served
    served.ended_s = served.at_s + result.duration_ms / 1e3
    served.prompt_tokens = result.usage.prompt_tokens or 0
    served.cached_tokens = result.usage.cached_tokens or 0
    served.output_tokens = result.usage.completion_tokens or 0
    if result.ttft_ms is not None:
        served.actual_ms[Target.TTFT] = result.ttft_ms
    if result.tpot_ms is not None:
        served.actual_ms[Target.TPOT] = result.tpot_ms
    return served
