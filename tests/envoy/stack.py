"""The whole product on loopback: simulated servers in this process, the picker and the real Envoy as child processes.

async with Stack(pool=3, bootstrap="gateway") as stack:
    async with aiohttp.ClientSession() as client:
        await client.post(f"{stack.url}/v1/completions", json=…)
    metrics = await stack.picker_metrics()
    assert metrics.total("llm_d_epp_request_total") == 1
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from epp.sim.bootstraps import render_bootstrap
from epp.sim.config import SimConfig
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess
from epp.sim.server import SimServer


class Metrics:
    """One reading of a metrics page. Parsed is what is asked for: who waits for one number reads the page often."""

    def __init__(self, text: str) -> None:
        self.text = text
        blocks = f"\n{text}".split("\n# HELP ")[1:]
        self._families = {block.split(maxsplit=1)[0]: f"# HELP {block}\n" for block in blocks}

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of this name that have these labels; 0.0 if there is none. A family that the page does
        not even announce is a KeyError, so a misspelt name cannot pass for 0."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self._family_of(name))
            for sample in family.samples
            if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
        )

    def _family_of(self, name: str) -> str:
        for suffix in ("_bucket", "_count", "_sum"):
            if name.endswith(suffix) and name not in self._families:
                return self._families[name.removesuffix(suffix)]
        return self._families[name]


class Stack:
    """
    Args:
        pool: how many simulated servers, or one configuration for each.
        bootstrap: `recommended` or `gateway`.
        fail_open: what Envoy does without a picker.
        config_text: EndpointPickerConfig; `None` is the picker's default.
        tls: whether the picker serves TLS.
        picker_flags: more flags for `epp serve`.
        ext_proc: fields of Envoy's ext_proc filter to replace, e.g. `{"processing_mode": {"request_body_mode": …}}`.
        endpoints_file: where the picker's pool is read from, not from `--endpoints`; `config_text` has to say so too.
        unix_socket: Envoy asks the picker over a Unix socket.
        bootstrap_options: more of `render_bootstrap`.

    Attributes:
        servers: the `SimServer`s themselves; their engines, recorders and faults are at hand.
        picker: the picker's process.
        envoy: Envoy's.
    """

    def __init__(
        self,
        pool: int | Sequence[SimConfig] = 2,
        *,
        bootstrap: str = "recommended",
        fail_open: bool = True,
        config_text: str | None = None,
        tls: bool = False,
        picker_flags: Sequence[str] = (),
        ext_proc: Mapping[str, Any] | None = None,
        endpoints_file: Path | None = None,
        unix_socket: bool = False,
        bootstrap_options: Mapping[str, Any] | None = None,
    ) -> None:
        configs = [SimConfig(name=f"sim-{i}", seed=i) for i in range(pool)] if isinstance(pool, int) else pool
        self.servers = [SimServer(config) for config in configs]
        self._bootstrap = bootstrap
        self._fail_open = fail_open
        self._config_text = config_text
        self._tls = tls
        self._picker_flags = picker_flags
        self._ext_proc = ext_proc
        self._endpoints_file = endpoints_file
        self._unix_socket = unix_socket
        self._bootstrap_options = bootstrap_options or {}
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_stack:
            folder = Path(exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-stack-")))
            for server in self.servers:
                await exit_stack.enter_async_context(server)
            if self._endpoints_file is not None:
                write_endpoints(self._endpoints_file, self.addresses)
            socket = folder / "ext_proc.sock"
            self.picker = PickerProcess(folder, self._picker_arguments(socket))
            exit_stack.push_async_callback(self.picker.kill)
            await self.picker.start()
            bootstrap = render_bootstrap(
                self._bootstrap,
                epp_address=f"unix:{socket}" if self._unix_socket else f"127.0.0.1:{self.picker.ports['grpc']}",
                epp_tls=self._tls,
                endpoints=self.addresses,
                fail_open=self._fail_open,
                ext_proc=self._ext_proc,
                **self._bootstrap_options,
            )
            self.envoy = await exit_stack.enter_async_context(EnvoyProxy(bootstrap, log_path=folder / "envoy.log"))
            self._exit = exit_stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    def _picker_arguments(self, socket: Path) -> list[str]:
        arguments = [f"--secure-serving={str(self._tls).lower()}"]
        if self._endpoints_file is None:
            arguments += ["--endpoints", ",".join(self.addresses)]
        if self._unix_socket:
            arguments += ["--grpc-socket", str(socket)]
        if self._config_text is not None:
            arguments += ["--config-text", self._config_text]
        return [*arguments, *self._picker_flags]

    @property
    def url(self) -> str:
        """Envoy, without a slash at the end."""
        return self.envoy.url

    @property
    def addresses(self) -> list[str]:
        """The servers' `host:port`, in the order of `servers`."""
        return [server.address for server in self.servers]

    async def picker_metrics(self) -> Metrics:
        return Metrics((await self.picker.ask("/metrics")).decode())

    async def picker_state(self) -> Any:
        """The picker's `/debug/state`."""
        return await self.picker.state()

    async def rely_on_records(self) -> None:
        """Ask until the picker knows that Envoy's access log comes."""
        async with aiohttp.ClientSession() as client:

            async def relied_on() -> bool:
                async with client.get(f"{self.url}/v1/models") as response:
                    await response.read()
                return (await self.picker_metrics()).total("llm_d_epp_access_log_relied_on") == 1

            await eventually(relied_on, timeout_s=30.0)

    async def is_idle(self) -> bool:
        """Nothing is reserved in the picker and no server works."""
        ledger = (await self.picker_state())["ledger"]
        engines = [server.engine.metrics() for server in self.servers]
        return not any(ledger.values()) and not any(engine.running + engine.waiting for engine in engines)


def write_endpoints(path: Path, addresses: Sequence[str]) -> None:
    """Put an endpoints file in the place of the one before, in one step."""
    entries = [dict(zip(("address", "port"), address.rsplit(":", 1), strict=True)) for address in addresses]
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps({"endpoints": [{"name": f"at-{e['port']}", **e} for e in entries]}))
    draft.replace(path)


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Wait until it holds; a TimeoutError if it never does."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)
