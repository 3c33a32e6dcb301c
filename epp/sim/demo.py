"""`epp demo`: the real Envoy, the picker and a pool of simulated servers on loopback, and traffic through all of it.

The servers live in this process; Envoy and the picker are child processes. All of them belong to one exit stack, so
that the end, a failure and Ctrl-C stop them in the same way.
"""

import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from epp.ledger import Ledger
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.server.configuration import build_config, text_of
from epp.sim.bootstraps import render_bootstrap
from epp.sim.config import SimConfig
from epp.sim.demo_config import DEMO_PROFILE
from epp.sim.demo_report import render_latency_report
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess
from epp.sim.pool import SimPool
from epp.sim.report import render_report
from epp.sim.traffic import Result, run_traffic
from epp.sim.workload import WORKLOADS, plan

PROGRESS_WIDTH = 30
WORKLOAD = WORKLOADS["mixed"]
SHARES_ARE_UNEVEN = (
    f"the servers are alike: shares differ because requests of {WORKLOAD.groups} applications begin alike,\n"
    "and go where that beginning is cached"
)
# Speaks for itself in the demonstration: metrics under one name only.
PICKER_FLAGS = ("--secure-serving=false", "--legacy-metrics=false")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """
    Attributes:
        servers: simulated model servers.
        requests: to send.
        config_file: EndpointPickerConfig of the picker; `None` is the profile.
        profile: one that comes with the picker.
        keep_running: after the table, until Ctrl-C.
        seed: of servers, traffic and picker.
    """

    servers: int = 4
    requests: int = 400
    config_file: str | None = None
    profile: str = DEMO_PROFILE
    keep_running: bool = False
    seed: int = 1


def demo(options: DemoOptions) -> int:
    """Run the demonstration. Returns the exit code: 0 if every request was answered. Raises `Problem`."""
    return asyncio.run(_until_interrupted(options))


async def _until_interrupted(options: DemoOptions) -> int:
    """Ctrl-C and SIGTERM end the demonstration by cancelling it, so that everything is stopped in order."""
    running = asyncio.ensure_future(_demo(options))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        print("\nstopped", flush=True)
        return 0 if options.keep_running else 130


async def _demo(options: DemoOptions) -> int:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-demo-")))
        print(f"starting {options.servers} simulated model servers, the picker and Envoy", flush=True)
        pool = await stack.enter_async_context(SimPool.of(options.servers, SimConfig(seed=options.seed)))
        picker = await stack.enter_async_context(PickerProcess(folder, _picker_arguments(options, pool)))
        bootstrap = render_bootstrap(
            "recommended", epp_address=f"127.0.0.1:{picker.ports['grpc']}", epp_tls=False, endpoints=pool.addresses
        )
        envoy = await stack.enter_async_context(EnvoyProxy(bootstrap, log_path=folder / "envoy.log"))

        results = await _send(envoy.url, options)
        print(f"\n{render_report(results)}\n\n{SHARES_ARE_UNEVEN}\n")
        page = (await picker.ask("/metrics")).decode()
        state = await picker.state()
        print(f"{render_latency_report(results, state, page)}\n", flush=True)
        print(_kept(state), flush=True)
        if options.keep_running:
            _tell_where_to_look(envoy, picker)
            print(f"\ntry it:\n  {_curl(envoy.url)}\nCtrl-C stops everything", flush=True)
            await asyncio.Event().wait()
        print("all of it is stopped now; `make demo SERVE=1` (or `epp demo --serve`) keeps it running", flush=True)
        return int(any(result.error is not None for result in results))


def _picker_arguments(options: DemoOptions, pool: SimPool) -> list[str]:
    arguments = ["--endpoints", ",".join(pool.addresses), "--seed", str(options.seed), *PICKER_FLAGS]
    if options.config_file is None:
        return [*arguments, "--profile", options.profile]
    if build_config(text_of(options.config_file), Services(ledger=Ledger())).discovery is not None:
        raise Problem(
            f"{options.config_file}: dataLayer.discovery: epp demo brings servers of its own; remove the key for it"
        )
    return [*arguments, "--config-file", options.config_file]


async def _send(url: str, options: DemoOptions) -> list[Result]:
    workload = replace(WORKLOAD, rate_rps=10.0 * options.servers)
    schedule = plan(workload, SimConfig().model, options.requests, random.Random(options.seed))
    seconds = schedule[-1].at_s if schedule else 0.0
    print(f"sending {len(schedule)} requests through {url} in about {seconds:.0f} s", flush=True)
    progress = Progress(len(schedule))
    results = await run_traffic(url, schedule, on_result=progress.one_more)
    progress.end()
    return results


def _kept(state: Mapping[str, Any]) -> str:
    return f"picker: {len(state['decisions'])} last decisions kept, {state['ledger']['requests']} requests in flight"


def _tell_where_to_look(envoy: EnvoyProxy, picker: PickerProcess) -> None:
    print(f"  metrics    {picker.metrics_url}/metrics")
    print(f"  decisions  {picker.metrics_url}/debug/state")
    print(f"envoy admin  {envoy.admin_url}")


def _curl(url: str) -> str:
    body = json.dumps(
        {
            "model": SimConfig().model,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "stream": True,
            "max_tokens": 16,
        }
    )
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


class Progress:
    """A bar that moves on a terminal, and a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._errors = 0
        self._moves = sys.stdout.isatty()
        self._step = max(1, total // (shutil.get_terminal_size().columns if self._moves else 4))

    def one_more(self, result: Result) -> None:
        self._done += 1
        self._errors += result.error is not None
        if self._done % self._step == 0 or self._done == self._total:
            filled = PROGRESS_WIDTH * self._done // self._total
            bar = "█" * filled + "·" * (PROGRESS_WIDTH - filled)
            line = f"  {bar} {self._done}/{self._total}, errors {self._errors}"
            print(f"\r{line}" if self._moves else line, end="" if self._moves else "\n", flush=True)

    def end(self) -> None:
        if self._moves:
            print()
