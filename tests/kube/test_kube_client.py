"""Requests to an API server that is scripted here: pages, events in whatever pieces, and answers that make no sense."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from epp.kube import client as client_module
from epp.kube.access import Access
from epp.kube.client import KubeClient
from epp.kube.failures import ApiFailure, Kind
from epp.kube.reflector import Reflector, ReflectorTimings
from epp.kube.resources import PODS


class Token:
    """A configuration of the official client, as far as it is asked."""

    username = None

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_settings(self) -> dict[str, dict[str, str]]:
        return {"BearerToken": {"in": "header", "value": f"Bearer {self._token}"}}


Handler = Callable[[web.Request], Any]


@asynccontextmanager
async def api_server(handler: Handler, tokens: tuple[str, ...] = ("t",)) -> AsyncIterator[KubeClient]:
    """`tokens`: the credentials that are found, one after the other, whenever they are looked for."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    left = iter(tokens)
    client = KubeClient(lambda: Access(f"http://127.0.0.1:{port}", None, None, None, Token(next(left))))
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "5"}}


async def pages_of(client: KubeClient) -> list[str]:
    pages = [page async for page in client.pages(PODS, "ns", {"labelSelector": "a=b"})]
    return [obj["metadata"]["name"] for page in pages for obj in page.objects]


async def events_of(client: KubeClient) -> list[tuple[str, str]]:
    batches = [batch async for batch in client.watch(PODS, "ns", {})]
    return [(kind, obj["metadata"]["name"]) for batch in batches for kind, obj in batch]


async def test_a_list_is_read_page_by_page_to_its_end() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, dict(request.query), request.headers["Authorization"]))
        start = int(request.query.get("continue", "0"))
        more = {"continue": str(start + 2)} if start < 4 else {}
        items = [named(f"p{i}") for i in range(start, start + 2)]
        return web.json_response({"metadata": {"resourceVersion": "9", **more}, "items": items})

    async with api_server(answer) as client:
        assert await pages_of(client) == [f"p{i}" for i in range(6)]
    assert {path for path, _, _ in asked} == {"/api/v1/namespaces/ns/pods"}
    assert {query["labelSelector"] for _, query, _ in asked} == {"a=b"}
    assert {authorization for _, _, authorization in asked} == {"Bearer t"}


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 10_000])
async def test_events_are_whole_in_whatever_pieces_they_come(piece_bytes: int) -> None:
    events = [{"type": "ADDED", "object": named(f"pöd-{i}")} for i in range(5)]
    data = b"".join(orjson.dumps(event) + b"\n" for event in events)

    async def answer(request: web.Request) -> web.StreamResponse:
        assert (request.query["watch"], request.query["allowWatchBookmarks"]) == ("1", "true")
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(data), piece_bytes):
            await response.write(data[start : start + piece_bytes])
        return response

    async with api_server(answer) as client:
        assert await events_of(client) == [("ADDED", f"pöd-{i}") for i in range(5)]


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (403, b'{"kind":"Status","message":"pods is forbidden"}', Kind.FORBIDDEN, "pods is forbidden"),
        (404, b"404 page not found", Kind.NOT_FOUND, "Not Found"),
        (410, b"{}", Kind.EXPIRED, "410"),
        (429, b"[]", Kind.REFUSED, "429"),
        (503, b"<html>", Kind.REFUSED, "503"),
        (200, b"<html>", Kind.REFUSED, "not JSON"),
        (200, b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n', Kind.EXPIRED, "too old"),
        (200, b'{"type":"ERROR","object":"?"}\n', Kind.REFUSED, "watch failed"),
        (200, b"x" * 5000 + b"\n", Kind.REFUSED, "JSON"),
        (200, b"x" * 5000, Kind.REFUSED, "4096 bytes"),
    ],
    ids=["403", "404", "410", "429", "503", "html", "gone", "odd-error", "garbage", "endless"],
)
async def test_what_goes_wrong_is_told_apart(
    status: int, body: bytes, kind: Kind, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_LINE_BYTES", 4096)
    line = body if status != 200 or b"\n" in body or len(body) > 100 else body + b"\n"

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=line)

    async with api_server(answer) as client:
        with pytest.raises(ApiFailure) as raised:
            await events_of(client)
    assert raised.value.kind is kind
    assert words in raised.value.said


async def test_refused_credentials_are_looked_for_again() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != "Bearer new":
            return web.json_response({"message": "Unauthorized"}, status=401)
        return web.json_response({"metadata": {}, "items": [named("p")]})

    async with api_server(answer, ("old", "new")) as client:
        with pytest.raises(ApiFailure, match="Unauthorized"):
            await pages_of(client)
        assert await pages_of(client) == ["p"]


async def test_nobody_there_is_said_in_words() -> None:
    client = KubeClient(lambda: Access("http://127.0.0.1:9", None, None, None, Token("t")))
    with pytest.raises(ApiFailure, match="refused") as raised:
        await pages_of(client)
    assert raised.value.kind is Kind.UNREACHABLE
    await client.close()


async def test_a_watch_that_always_ends_at_once_is_not_hammered() -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if "watch" in request.query:
            return web.Response(body=b"")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async with api_server(answer) as client:
        reflector = Reflector(
            client,
            PODS,
            "ns",
            lambda obj: obj,
            lambda: None,
            clock=time.monotonic,
            rng=random.Random(1),
            on_error=lambda *_: None,
            timings=ReflectorTimings(),
        )
        task = asyncio.create_task(reflector.run())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert 1 < asked < 12
    assert reflector.reflection.synced
    assert "ended at once" in str(reflector.problem)
