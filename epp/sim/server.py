"""A simulated model server over HTTP: vLLM's API and metrics around a simulated engine, in real time.

Beside the model's API it has a door for tests and demonstrations: `POST /sim/faults` breaks things (see `faults.py`),
`GET /sim/last_request?marker=…` tells what a request looked like when it came. Every answer names its server in the
header `x-sim-server`.
"""

import argparse
import asyncio
import json
import math
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from aiohttp import web
from pydantic import ValidationError

from epp.sim.config import EngineConfig, SimConfig
from epp.sim.engine import Engine
from epp.sim.faults import Faults, FaultState, MetricsFault
from epp.sim.recorder import Recorded, Recorder
from epp.sim.runner import EngineRunner
from epp.sim.service import APIS, InferenceService
from epp.sim.timing import HARDWARE
from epp.sim.vllm_metrics import GARBAGE_PAGE, VllmPage

SERVER_HEADER = "x-sim-server"
_MOST_BODY_BYTES = 64 * 2**20
_NOT_RECORDED = ("/sim/", "/metrics", "/health")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SimServer:
    """One server, serving while its async `with` block lasts. Entering it raises OSError when the port is taken."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self._faults = FaultState()
        self.recorder = Recorder()
        self._rng = random.Random(config.seed)
        self._metrics_interval_s = self._rng.uniform(*config.metrics_interval_ms) / 1000.0
        self._metrics_timer: asyncio.TimerHandle | None = None
        self._port = config.port

    @property
    def port(self) -> int:
        """The bound port."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port`, IPv6 bracketed."""
        host = self.config.host
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def __aenter__(self) -> "SimServer":
        self._started_wall_s = time.time()
        self.engine = Engine(self.config.engine, self._rng)
        self.engine.slow_factor = self._faults.current.slow_factor
        self._page = VllmPage(self.config.model, self.config.adapters, self.config.engine, self._started_wall_s)
        self._runner = EngineRunner(self.engine, self.config.speed)
        # Bodies are kept as sent, so the service decompresses them; a client that leaves cancels its handler.
        self._web = web.AppRunner(
            self._app(), auto_decompress=False, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._web.setup()
        try:
            await web.TCPSite(self._web, self.config.host, self._port).start()
        except OSError:
            await self._web.cleanup()
            raise
        self._port = self._web.addresses[0][1]
        self._update_metrics()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._metrics_timer is not None:
            self._metrics_timer.cancel()
        await self._web.cleanup()
        self._runner.close()

    async def restart(self) -> None:
        """Start anew in place: the same name and address, nothing cached, nothing counted. Breaks what is under way."""
        await self.__aexit__(None, None, None)
        await self.__aenter__()

    def break_with(self, faults: Faults) -> None:
        """Put these faults in force instead of those before; `Faults()` heals."""
        self._faults.replace(faults)
        self.engine.slow_factor = faults.slow_factor

    def _app(self) -> web.Application:
        service = InferenceService(self.config, self._runner, self._faults)
        app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[self._record])
        app.on_response_prepare.append(self._sign)
        app.add_routes([web.post(path, service.handle) for path in APIS])
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/sim/faults", self._show_faults),
                web.post("/sim/faults", self._set_faults),
                web.get("/sim/last_request", self._last_request),
            ]
        )
        return app

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[SERVER_HEADER] = self.config.name

    @web.middleware
    async def _record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not request.path.startswith(_NOT_RECORDED):
                body = await request.read()
                self.recorder.add(Recorded(request.method, request.raw_path, request.raw_headers, body))
            return await handler(request)
        except web.HTTPException as error:  # no such path, not with this method, too large
            return web.json_response({"detail": error.reason}, status=error.status)

    async def _models(self, request: web.Request) -> web.Response:
        base = {"object": "model", "created": int(self._started_wall_s), "owned_by": "vllm"}
        longest = self.config.engine.longest_tokens
        models = [{"id": self.config.model, "parent": None, "max_model_len": longest}]
        models += [{"id": name, "parent": self.config.model, "max_model_len": None} for name in self.config.adapters]
        return web.json_response({"object": "list", "data": [m | base | {"root": m["id"]} for m in models]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._faults.current.unhealthy else 200)

    # --- metrics: a page that is brought up to date on a clock of its own, so that readers see old values ---------

    def _update_metrics(self) -> None:
        if self._faults.current.metrics is not MetricsFault.FROZEN:
            self._page.record(self.engine.metrics(), time.time())
        self._metrics_timer = asyncio.get_running_loop().call_later(self._metrics_interval_s, self._update_metrics)

    async def _metrics(self, request: web.Request) -> web.Response:
        fault = self._faults.current.metrics
        if fault is MetricsFault.HANG:
            await asyncio.Event().wait()
        page = GARBAGE_PAGE if fault is MetricsFault.GARBAGE else self._page.render()
        return web.Response(body=page, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    # --- the door for tests and demonstrations ----------------------------------------------------------------------

    async def _show_faults(self, request: web.Request) -> web.Response:
        return web.json_response(text=self._faults.current.model_dump_json())

    async def _set_faults(self, request: web.Request) -> web.Response:
        try:
            self.break_with(Faults.model_validate_json(await request.read() or b"{}"))
        except ValidationError as error:
            return web.json_response({"error": str(error)}, status=400)
        return await self._show_faults(request)

    async def _last_request(self, request: web.Request) -> web.Response:
        if unknown := sorted(set(request.query) - {"marker"}):
            return web.json_response({"error": f"{unknown[0]}: no such parameter; there is marker"}, status=400)
        recorded = self.recorder.find(request.query.get("marker"))
        if recorded is None:
            return web.json_response({"error": "no such request"}, status=404)
        return web.json_response(recorded.as_json())


async def run_sim_server(config: SimConfig) -> None:
    """Serve until SIGINT or SIGTERM; print the name and bound address as one line of JSON. Raises OSError."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with SimServer(config) as server:
        print(json.dumps({"name": config.name, "address": server.address, "port": server.port}), flush=True)
        await stop.wait()


_DESCRIPTION = """\
One simulated model server: OpenAI's completions and chat API with streams, and vLLM's /metrics, at the speed of the
hardware that it plays. What it answers is noise. It prints its address as a line of JSON, and serves until Ctrl-C."""


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0.0 < speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return speed


def main() -> int:
    """`python -m epp.sim.server`: exit code 2 when the port cannot be had."""
    engine, sim = EngineConfig(), SimConfig()
    parser = argparse.ArgumentParser(prog="python -m epp.sim.server", description=_DESCRIPTION)
    parser.add_argument("--host", default=sim.host, help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=sim.port, help="0 takes a free one (default)")
    parser.add_argument("--name", default=sim.name, help="what the x-sim-server header says")
    parser.add_argument("--model", default=sim.model, help="what it calls its model (default %(default)s)")
    parser.add_argument("--adapter", action="append", default=[], help="name of a LoRA adapter; may be repeated")
    parser.add_argument(
        "--hardware",
        choices=sorted(HARDWARE),
        default="8b-h100",
        metavar="SHAPE",
        help=f"how fast it is: {', '.join(sorted(HARDWARE))} (default %(default)s)",
    )
    parser.add_argument(
        "--max-sequences", type=int, default=engine.max_sequences, help="that run at once (default %(default)s)"
    )
    parser.add_argument(
        "--max-batched-tokens", type=int, default=engine.max_batched_tokens, help="of one step (default %(default)s)"
    )
    parser.add_argument(
        "--max-waiting",
        type=int,
        default=engine.max_waiting,
        help="requests that wait at most; more are refused (default %(default)s)",
    )
    parser.add_argument(
        "--kv-blocks",
        type=int,
        default=engine.kv_blocks,
        help=f"KV cache, in blocks of {engine.block_tokens} tokens (default %(default)s)",
    )
    parser.add_argument(
        "--speed", type=_speed, default=sim.speed, help="simulated seconds in a real one (default %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=sim.seed, help="of its noise and its words (default %(default)s)")
    args = parser.parse_args()
    config = SimConfig(
        name=args.name,
        host=args.host,
        port=args.port,
        model=args.model,
        adapters=tuple(args.adapter),
        engine=EngineConfig(
            hardware=HARDWARE[args.hardware],
            max_sequences=args.max_sequences,
            max_batched_tokens=args.max_batched_tokens,
            max_waiting=args.max_waiting,
            kv_blocks=args.kv_blocks,
        ),
        speed=args.speed,
        seed=args.seed,
    )
    try:
        asyncio.run(run_sim_server(config))
    except OSError as error:
        print(f"cannot serve on {config.host}:{config.port}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
