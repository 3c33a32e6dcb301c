"""Pools of echo servers with a picker each, behind one Envoy: the fixture of Gateway API's conformance tests.

async with echo_pools("recommended", {"primary": Pool(hosts=["127.0.0.1", "127.0.0.2"])}) as cluster:
    answer = await cluster.ask("/primary", select="127.0.0.2")
"""

import asyncio
import copy
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from echo_server import EchoServer

from epp.sim.bootstraps import Bootstrap, render_bootstrap
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess

SELECTION_HEADER = "test-epp-endpoint-selection"
SERVED_HEADER = "x-conformance-test-served-endpoint"
BODY = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic: San Francisco"}
REQUESTS = 100
AT_ONCE = 10

TEST_PICKER = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: header-based-testing-filter
- type: destination-endpoint-served-verifier
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: header-based-testing-filter
  - pluginRef: random-picker
"""


@dataclass
class Pool:
    """Servers on every port of every host, port by port, and the picker that knows them.

    Attributes:
        hosts: addresses of loopback.
        ports: how many ports (data-parallel ranks) each host has; the same ones on every host.
        protocol: what the servers speak: `http` or `h2c`.
        fail_open: what becomes of its requests without its picker.
    """

    hosts: Sequence[str]
    ports: int = 1
    protocol: str = "http"
    fail_open: bool = True
    servers: list[EchoServer] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    async def start(self, stack: AsyncExitStack, folder: Path) -> None:
        for _ in range(self.ports):
            port = 0
            for host in self.hosts:
                server = await stack.enter_async_context(EchoServer(host, port, self.protocol))
                port = server.port
                self.servers.append(server)
        flags = ["--endpoints", ",".join(self.addresses), "--config-text", TEST_PICKER, "--secure-serving=false"]
        self.picker = PickerProcess(folder, flags)
        await stack.enter_async_context(self.picker)


@dataclass
class Answer:
    status: int
    server: str | None
    served_header: str | None
    protocol: str | None = None


@dataclass
class Cluster:
    pools: Mapping[str, Pool]
    envoy: EnvoyProxy
    client: aiohttp.ClientSession

    async def ask(
        self, path: str, *, select: str | None = None, method: str = "POST", host: str | None = None
    ) -> Answer:
        headers = {} if select is None else {SELECTION_HEADER: select}
        if host is not None:
            headers["host"] = host
        body = BODY if method == "POST" else None
        async with self.client.request(method, self.envoy.url + path, json=body, headers=headers) as response:
            told = await response.json() if response.status == 200 else {}
            served = response.headers.get(SERVED_HEADER)
            return Answer(response.status, told.get("server"), served, told.get("protocol"))

    async def ask_many(self, path: str, *, select: str | None = None, requests: int = REQUESTS) -> list[Answer]:
        """Ten at a time."""
        some = asyncio.Semaphore(AT_ONCE)

        async def one() -> Answer:
            async with some:
                return await self.ask(path, select=select)

        return await asyncio.gather(*(one() for _ in range(requests)))


def servers_hit(answers: Sequence[Answer]) -> Counter[str | None]:
    assert {answer.status for answer in answers} == {200}
    return Counter(answer.server for answer in answers)


@asynccontextmanager
async def echo_pools(
    bootstrap: str, pools: Mapping[str, Pool], weights: Mapping[str, int] | None = None
) -> AsyncIterator[Cluster]:
    """`/NAME` asks for the pool of that name; any other path, given weights, for one of them by weight."""
    async with AsyncExitStack() as stack:
        for name, pool in pools.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"headroom-{name}-")))
            await pool.start(stack, folder)
        config = _config(bootstrap, pools, weights or {})
        envoy = await stack.enter_async_context(EnvoyProxy(config))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)))
        yield Cluster(pools, envoy, client)


# --- one of our bootstraps, for one pool or several -----------------------------------------------------------------


def _config(bootstrap: str, pools: Mapping[str, Pool], weights: Mapping[str, int]) -> Bootstrap:
    each = {name: _config_of_one(bootstrap, pool) for name, pool in pools.items()}
    first = next(iter(each.values()))
    config = copy.deepcopy(first)
    config["static_resources"]["clusters"] = [
        {**cluster, "name": f"{cluster['name']}-{name}"} for name, one in each.items() for cluster in _clusters(one)
    ]
    host = _virtual_host(config)
    host["routes"] = [_route_to(name, route) for name, one in each.items() for route in _virtual_host(one)["routes"]]
    if weights:
        host["routes"] += [_weighted(route, weights) for route in _virtual_host(first)["routes"] if "route" in route]
    return config


def _config_of_one(bootstrap: str, pool: Pool) -> Bootstrap:
    config = render_bootstrap(
        bootstrap,
        epp_address=f"127.0.0.1:{pool.picker.ports['grpc']}",
        epp_tls=False,
        endpoints=pool.addresses,
        fail_open=pool.fail_open,
    )
    if pool.protocol == "h2c":
        (servers,) = (cluster for cluster in _clusters(config) if cluster["name"] == "model_servers")
        options = servers.setdefault("typed_extension_protocol_options", {})
        kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        options.setdefault(kind, {"@type": f"type.googleapis.com/{kind}"})
        options[kind]["explicit_http_config"] = {"http2_protocol_options": {}}
    return config


def _clusters(config: Bootstrap) -> list[dict[str, Any]]:
    return config["static_resources"]["clusters"]


def _virtual_host(config: Bootstrap) -> dict[str, Any]:
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return manager["route_config"]["virtual_hosts"][0]


def _asks(name: str) -> dict[str, Any]:
    """The picker that a route asks in the place of the filter's own."""
    kind = "envoy.filters.http.ext_proc"
    service = {"envoy_grpc": {"cluster_name": f"picker-{name}"}}
    override = {"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"}
    return {kind: {**override, "overrides": {"grpc_service": service}}}


def _route_to(name: str, route: dict[str, Any]) -> dict[str, Any]:
    match = {**route["match"], "prefix": f"/{name}"}
    to = {**route, "name": f"{route.get('name')}-{name}", "match": match, "typed_per_filter_config": _asks(name)}
    if "route" in route:
        to["route"] = {**route["route"], "cluster": f"model_servers-{name}"}
    return to


def _weighted(route: dict[str, Any], weights: Mapping[str, int]) -> dict[str, Any]:
    clusters = [
        {"name": f"model_servers-{name}", "weight": weight, "typed_per_filter_config": _asks(name)}
        for name, weight in weights.items()
    ]
    action = {key: value for key, value in route["route"].items() if key != "cluster"}
    return {**route, "route": {**action, "weighted_clusters": {"clusters": clusters}}}
