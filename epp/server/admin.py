"""The metrics port: Prometheus, health for people and probes, and what the picker knows and did lately."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from epp.observe.page import format_for, pieces
from epp.observe.records import Selection
from epp.scheduling.plugin import Plugin
from epp.server.admin_guard import Guard
from epp.server.health import HealthState
from epp.server.listen import TcpAddress, listen

INDEX = """Headroom endpoint picker

/metrics              Prometheus (or OpenMetrics, if asked for)
/healthz              200 while the process works
/readyz               200 while requests may come, else 503 and why not
/debug/state          the pool, what is in flight, the last decisions
/debug/plugins/state  what each plugin keeps
"""
BACKLOG = 128
MOST_DIGITS = 9
MOST_SHOWN = 40  # letters of what was asked wrongly
NO_STATE = "plugin does not support state collection"
DUMP_FAILED = "state collection failed"
# Debug pages are for people: infinities become null, keys may be anything.
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2


class Pages(Protocol):
    """What is shown, brought together when somebody asks. Plain values; other processes may have to be asked first."""

    async def collect(self) -> None:
        """Bring the counts in the registry up to date."""

    async def state(self, selection: Selection) -> Mapping[str, Any]:
        """For `/debug/state`; `decisions` are those of the last that are selected, newest first."""

    async def plugins(self) -> Mapping[str, Any]:
        """For `/debug/plugins/state`: by name what each plugin keeps."""


class AdminServer:
    """Plain HTTP on one port."""

    def __init__(
        self,
        address: TcpAddress,
        *,
        registry: CollectorRegistry,
        health: HealthState,
        pages: Pages,
        guard: Guard | None = None,
    ) -> None:
        """`guard`: who may read what; `None`: everybody everything."""
        self._guard = guard
        self._address = address
        self._registry = registry
        self._health = health
        self._pages = pages
        self._runner: web.AppRunner | None = None
        self._port: int | None = None

    @property
    def port(self) -> int | None:
        """The port that is bound; `None` before `start`."""
        return self._port

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/", self._index)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/debug/state", self._debug_state)
        app.router.add_get("/debug/plugins/state", self._debug_plugins)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = None if self._guard is None else await self._guard(request)
        return await handler(request) if refusal is None else refusal

    async def start(self) -> None:
        """Raises `CannotListen`."""
        listener = listen(self._address, BACKLOG)
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        encode, content_type = format_for(",".join(request.headers.getall("Accept", ())))
        names = request.query.getall("name[]", [])
        registry = self._registry.restricted_registry(names) if names else self._registry
        await self._pages.collect()
        metrics = list(registry.collect())  # all of one moment
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.enable_compression()
        await response.prepare(request)
        # A page may have 150,000 lines. Requests wait for a piece of it, and not for all. In a thread of its own it
        # would have them wait for longer: whoever computes hands the interpreter over every 5 ms only.
        with suppress(ConnectionResetError):  # who asked has left
            for piece in pieces(metrics, encode):
                await response.write(piece)
                await asyncio.sleep(0)
        return response

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._health.reasons()
        if reasons:
            return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))
        return web.Response(text="ok\n")

    async def _debug_state(self, request: web.Request) -> web.Response:
        """`decisions=N` shows the last N only, `id=X` those of the request with this x-request-id."""
        asked = _asked(request, "decisions", "id")
        shown = dict(await self._pages.state(Selection(_most(asked.get("decisions")), asked.get("id"))))
        # Of a large pool they are megabytes: requests wait for one of them, and not for all.
        shown["decisions"] = [await _written(decision) for decision in shown["decisions"]]
        return _json(shown)

    async def _debug_plugins(self, request: web.Request) -> web.Response:
        _asked(request)
        return _json(
            {
                "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
                "plugins": await self._pages.plugins(),
            }
        )


def _asked(request: web.Request, *known: str) -> dict[str, str]:
    """The parameters of a debug page, which people write and mistype. Probes and scrapers, who may add some of their
    own, are asked for none. Raises `HTTPBadRequest`."""
    asked: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            there = f"there are {' and '.join(known)}" if known else "this page takes none"
            raise web.HTTPBadRequest(text=f"{_shown(name)}: no such parameter; {there}\n")
        if name in asked:
            raise web.HTTPBadRequest(text=f"{name}: is given twice; give it once\n")
        asked[name] = value
    return asked


def _most(text: str | None) -> int | None:
    """How many decisions; `None`: all. Raises `HTTPBadRequest`."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise web.HTTPBadRequest(text=f"decisions: {_shown(text)} is not a whole number; write it as decisions=3\n")
    return int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…")


def plugin_states(plugins: Sequence[Plugin]) -> dict[str, Any]:
    """What each keeps, by name, or why that is not told."""
    return {plugin.name: _plugin_state(plugin) for plugin in plugins}


def _plugin_state(plugin: Plugin) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": plugin.name, "type": plugin.plugin_type}
    try:
        state = plugin.dump_state()
    except Exception as error:
        return entry | {"message": f"{DUMP_FAILED}: {type(error).__name__}"}
    return entry | ({"message": NO_STATE} if state is None else {"state": state})


def _json(value: Any) -> web.Response:
    return web.Response(body=_dumped(value), content_type="application/json")


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=JSON_OPTIONS)


async def _written(entry: Any) -> orjson.Fragment:
    """An entry of a list on a page, with the indentation that it has there."""
    await asyncio.sleep(0)
    return orjson.Fragment(_dumped(entry).replace(b"\n", b"\n    "))
