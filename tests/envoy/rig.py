"""One of our bootstraps on the real Envoy, between a picker that knows one answer and servers that do as told."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from recording_picker import RecordingPicker
from scripted_server import CHUNKS, ScriptedServer

from epp.sim.bootstraps import render_bootstrap
from epp.sim.envoyproxy import EnvoyProxy

STREAM = b"".join(CHUNKS)
DROPPED_REASON = "x-llm-d-request-dropped-reason"
DESTINATION = "x-gateway-destination-endpoint"


@dataclass
class Rig:
    """Envoy between a client, a recording picker and scripted servers; the picker's answer is all of them, in order."""

    envoy: EnvoyProxy
    client: aiohttp.ClientSession
    picker: RecordingPicker
    servers: list[ScriptedServer]

    def ask(self, method: str = "POST", **options: Any) -> "aiohttp.client._RequestContextManager":
        data = b'{"prompt": "x"}' if method == "POST" else None
        return self.client.request(method, f"{self.envoy.url}/v1/completions", **{"data": data, **options})

    @property
    def asked(self) -> list[int]:
        return [server.requests for server in self.servers]


@asynccontextmanager
async def rig(
    bootstrap: str, behaviours: Sequence[str] = ("good",), *, picker_up: bool = True, **options: Any
) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedServer(behaviour)) for behaviour in behaviours]
        addresses = [server.address for server in servers]
        picker = await stack.enter_async_context(RecordingPicker(",".join(addresses)))
        if not picker_up:
            await picker.die()
        config = render_bootstrap(
            bootstrap, epp_address=picker.address, epp_tls=False, **{"endpoints": addresses, **options}
        )
        envoy = await stack.enter_async_context(EnvoyProxy(config))
        client = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)))
        yield Rig(envoy, client, picker, servers)


async def is_told_in_json(response: aiohttp.ClientResponse, status: int, reason: str) -> None:
    """An error of Envoy's own, in a shape that clients of either API understand."""
    assert (response.status, response.content_type) == (status, "application/json")
    assert response.headers.getall(DROPPED_REASON) == [reason]
    told = await response.json()
    assert told["type"] == "error"
    assert told["error"]["code"] == status
    assert told["error"]["type"]
    assert told["error"]["message"]
