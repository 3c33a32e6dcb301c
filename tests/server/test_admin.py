"""The admin pages over real HTTP."""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from epp.inference.request import Request
from epp.ledger import Ledger
from epp.observe.families import Families
from epp.observe.page import PIECE_BYTES
from epp.observe.records import DecisionRing, Selection
from epp.scheduling.decision import Denial
from epp.scheduling.plugin import IgnoredParameters, Plugin, Services
from epp.server.admin import AdminServer, plugin_states
from epp.server.health import HealthState
from epp.server.listen import CannotListen, TcpAddress


class Quiet(Plugin):
    plugin_type = "quiet"


class Talkative(Plugin):
    plugin_type = "talkative"

    def dump_state(self) -> Mapping[str, Any]:
        return {"entries": 3, "rate": math.inf}


class Broken(Plugin):
    plugin_type = "broken"

    def dump_state(self) -> Mapping[str, Any]:
        raise ValueError("secret")


class Shown:
    """What the pages show."""

    def __init__(self, counter: Counter | None = None) -> None:
        self._counter = counter

    async def collect(self) -> None:
        if self._counter is not None:
            self._counter.inc()

    async def state(self, selection: Selection) -> Mapping[str, Any]:
        ring = DecisionRing()
        ring.request_refused(None, Denial.bad_request("no"), None, 0.1)
        for name in ("a", "b", "c"):
            ring.request_refused(Request(id=name, headers={"x-request-id": name}), Denial.bad_request("no"), None, 0.1)
        return {
            "load": math.inf,
            "waiting": math.nan,
            "array": np.array([1.0]),
            "set": frozenset(),
            "decisions": ring.render(1.0, selection),
        }

    async def plugins(self) -> Mapping[str, Any]:
        services = Services(ledger=Ledger())
        return plugin_states(
            [kind(kind.plugin_type, IgnoredParameters(), services) for kind in (Quiet, Talkative, Broken)]
        )


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
async def admin(reasons: list[str]) -> AsyncIterator[AdminServer]:
    registry = CollectorRegistry()
    things = Counter("things", "Things.", registry=registry)
    server = AdminServer(
        TcpAddress(0, "--metrics-port", "127.0.0.1"),
        registry=registry,
        health=HealthState(lambda: reasons),
        pages=Shown(things),
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def http(admin: AdminServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{admin.port}") as session:
        yield session


async def test_metrics_in_both_formats(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        assert "things_total 1.0" in await response.text()
    async with http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await response.text()).endswith("# EOF\n")


async def long_page() -> tuple[AdminServer, str]:
    """A server whose page takes many pieces, and the page."""
    registry = CollectorRegistry()
    histogram = Families(registry).histogram("seconds", "Seconds.", [float(i) for i in range(20)], ("model",))
    for number in range(3000):
        histogram[f"model-{number}",].observe(1.0)
    server = AdminServer(
        TcpAddress(0, "--metrics-port", "127.0.0.1"), registry=registry, health=HealthState(list), pages=Shown()
    )
    await server.start()
    return server, generate_latest(registry).decode()


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
async def test_a_long_page_is_whole_and_others_have_their_turn_while_it_is_made(coding: str) -> None:
    server, expected = await long_page()
    turns, over = 0, False

    async def others() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    job = asyncio.create_task(others())
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{server.port}/metrics", headers={"Accept-Encoding": coding}) as response,
        ):
            assert response.headers.get("Content-Encoding", "identity") == coding
            assert await response.text() == expected
            assert turns >= len(expected) / PIECE_BYTES > 10
            async with http.head(f"http://127.0.0.1:{server.port}/metrics") as head:
                assert (head.status, await head.read()) == (200, b"")
                assert head.headers["Content-Type"] == response.headers["Content-Type"]
    finally:
        over = True
        await job
        await server.stop()


async def test_a_scraper_that_leaves_in_the_middle_of_a_page_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    server, expected = await long_page()
    try:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1000)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0)
            writer.transport.abort()
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{server.port}/metrics") as response:
            assert await response.text() == expected
    finally:
        await server.stop()
    assert [record.message for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_http_1_0_gets_the_page_too() -> None:
    server, expected = await long_page()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    finally:
        await server.stop()
    assert head.startswith(b"HTTP/1.0 200")
    assert body.decode() == expected


async def test_healthz_is_about_the_process_and_readyz_about_requests(
    http: aiohttp.ClientSession, reasons: list[str]
) -> None:
    async with http.get("/readyz") as response:
        assert response.status == 200
    reasons.append("no endpoints yet")
    async with http.get("/readyz") as response:
        assert (response.status, await response.text()) == (503, "no endpoints yet\n")
    async with http.get("/healthz") as response:
        assert response.status == 200


async def test_debug_state_is_valid_json_whatever_the_numbers(http: aiohttp.ClientSession) -> None:
    async with http.get("/debug/state") as response:
        assert response.content_type == "application/json"
        state = json.loads(await response.text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert state["load"] is None
    assert state["waiting"] is None


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["c", "b", "a", None]),
        ("?decisions=2", ["c", "b"]),
        ("?decisions=0", []),
        ("?decisions=9", ["c", "b", "a", None]),
        ("?decisions=1&id=b", ["b"]),
        ("?id=b", ["b"]),
        ("?id=nobody", []),
    ],
)
async def test_debug_state_can_be_asked_for_few_decisions_or_one(
    http: aiohttp.ClientSession, query: str, ids: list[str | None]
) -> None:
    async with http.get(f"/debug/state{query}") as response:
        decisions = (await response.json())["decisions"]
    assert [(d["request"] or {"x_request_id": None})["x_request_id"] for d in decisions] == ids


async def test_decisions_that_are_written_one_by_one_look_like_those_of_a_whole_page(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/debug/state") as response:
        page = await response.read()
    assert len(json.loads(page)["decisions"]) == 4
    assert page == orjson.dumps(json.loads(page), option=orjson.OPT_INDENT_2)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("state?decisions=x", "decisions: 'x' is not a whole number; write it as decisions=3"),
        ("state?decisions=-1", "decisions: '-1' is not a whole number; write it as decisions=3"),
        ("state?decisions=", "decisions: '' is not a whole number; write it as decisions=3"),
        (f"state?decisions={'9' * 5000}", f"decisions: '{'9' * 40}…' is not a whole number; write it as decisions=3"),
        ("state?decision=3", "'decision': no such parameter; there are decisions and id"),
        ("state?id=a&id=b", "id: is given twice; give it once"),
        ("plugins/state?decisions=3", "'decisions': no such parameter; this page takes none"),
    ],
    ids=["word", "below 0", "empty", "endless", "misspelt", "twice", "none taken"],
)
async def test_a_debug_page_that_is_asked_wrongly_says_how_to(
    http: aiohttp.ClientSession, page: str, says: str
) -> None:
    async with http.get(f"/debug/{page}") as response:
        assert (response.status, await response.text()) == (400, f"{says}\n")


async def test_scrapers_and_probes_may_add_parameters_of_their_own(http: aiohttp.ClientSession) -> None:
    for page in ("/metrics", "/healthz", "/readyz"):
        async with http.get(f"{page}?cluster=a") as response:
            assert response.status == 200


async def test_plugin_state_has_the_shape_that_tools_for_llm_d_read(http: aiohttp.ClientSession) -> None:
    async with http.get("/debug/plugins/state") as response:
        page = await response.json()
    assert page["timestamp"].endswith("Z")
    assert page["plugins"] == {
        "quiet": {"name": "quiet", "type": "quiet", "message": "plugin does not support state collection"},
        "talkative": {"name": "talkative", "type": "talkative", "state": {"entries": 3, "rate": None}},
        "broken": {"name": "broken", "type": "broken", "message": "state collection failed: ValueError"},
    }


async def test_other_methods_are_told_what_is_allowed(http: aiohttp.ClientSession) -> None:
    async with http.post("/debug/plugins/state") as response:
        assert response.status == 405
        assert "GET" in response.headers["Allow"]


async def test_the_index_lists_every_page(http: aiohttp.ClientSession, admin: AdminServer) -> None:
    async with http.get("/") as response:
        text = await response.text()
    paths = {resource.canonical for resource in admin.app().router.resources()} - {"/"}
    assert paths
    assert all(path in text for path in paths)


async def test_a_port_in_use_is_one_line(admin: AdminServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = TcpAddress(taken.getsockname()[1], "--metrics-port", "127.0.0.1")
        rival = AdminServer(address, registry=CollectorRegistry(), health=HealthState(list), pages=Shown())
        with pytest.raises(CannotListen, match="--metrics-port"):
            await rival.start()


async def test_without_a_host_one_port_answers_over_ipv4_and_ipv6() -> None:
    address = TcpAddress(0, "--metrics-port")
    server = AdminServer(address, registry=CollectorRegistry(), health=HealthState(list), pages=Shown())
    await server.start()
    try:
        hosts = ["127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else [])]
        async with aiohttp.ClientSession() as http:
            for host in hosts:
                async with http.get(f"http://{host}:{server.port}/healthz") as response:
                    assert response.status == 200
    finally:
        await server.stop()
