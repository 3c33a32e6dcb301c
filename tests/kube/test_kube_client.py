"""Requests to an API server that is scripted here: pages, events in whatever pieces, and answers that make no sense."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from kube_world import until

from epp.kube import client as client_module
from epp.kube.access import Access, load_access
from epp.kube.client import KubeClient
from epp.kube.discovery import KubeDiscovery
from epp.kube.failures import ApiFailure, Kind
from epp.kube.options import KubeOptions, PodsBySelector, PoolByName
from epp.kube.reflector import Reflector, ReflectorTimings
from epp.kube.resources import PODS
from epp.kube.selector import parse_selector
from epp.pool.store import EndpointChanges, PoolStore


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
        (429, b"[]", Kind.BUSY, "429"),
        (503, b"<html>", Kind.BUSY, "503"),
        (500, b"<html>", Kind.REFUSED, "500"),
        (200, b'{"kind":"Status","status":"Success"}\n', Kind.REFUSED, "not an event"),
        (200, b'{"type":"ADDED","object":{"metadata":{"name":["p"]}}}\n', Kind.REFUSED, "not an event"),
        (200, b"<html>", Kind.REFUSED, "not JSON"),
        (200, b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n', Kind.EXPIRED, "too old"),
        (200, b'{"type":"ERROR","object":"?"}\n', Kind.REFUSED, "watch failed"),
        (200, b"x" * 5000 + b"\n", Kind.REFUSED, "JSON"),
        (200, b"x" * 5000, Kind.REFUSED, "4096 bytes"),
    ],
    ids=[
        "403",
        "404",
        "410",
        "429",
        "503",
        "500",
        "status",
        "no name",
        "html",
        "gone",
        "odd-error",
        "garbage",
        "endless",
    ],
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


@pytest.mark.parametrize("body", [b"{}", b"null", b"[]", b'{"kind":"Status"}', b'{"items":{}}', b'{"items":[', b""])
async def test_what_is_no_list_does_not_pass_for_an_empty_one(body: bytes) -> None:
    """Else the whole pool would be gone."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async with api_server(answer) as client:
        with pytest.raises(ApiFailure, match=r"not a list|not JSON"):
            await pages_of(client)


async def test_nobody_is_followed_elsewhere_with_our_credentials() -> None:
    """A login page in front of the API server, say."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/login"})

    async with api_server(answer) as client:
        with pytest.raises(ApiFailure, match=r"Found to '/login' \(302\)"):
            await pages_of(client)
    assert asked == ["/api/v1/namespaces/ns/pods"]


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


@asynccontextmanager
async def reflecting(
    client: KubeClient, on_change: Callable[[], None] = lambda: None, on_error: Callable[..., None] = lambda *_: None
) -> AsyncIterator[Reflector[Any]]:
    reflector = Reflector(
        client,
        PODS,
        "ns",
        lambda obj: obj,
        on_change,
        clock=time.monotonic,
        rng=random.Random(1),
        on_error=on_error,
        timings=ReflectorTimings(),
    )
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_after_a_mistake_of_ours_the_others_are_still_watched() -> None:
    """Whoever hears of a change fails once: everything is listed again, and followed on."""
    told = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(orjson.dumps({"type": "ADDED", "object": named(f"p{len(told)}")}) + b"\n")
        await asyncio.sleep(60)
        return response

    def on_change() -> None:
        told.append(None)
        if len(told) == 2:
            raise ZeroDivisionError

    errors = []
    async with api_server(answer) as client, reflecting(client, on_change, lambda *e: errors.append(e)) as reflector:
        await until(lambda: list(reflector.reflection.kept), lambda said: said == ["ns/p3"])
        assert errors == [("pods", Kind.REFUSED)]
        assert reflector.problem is None


async def test_a_busy_api_server_is_not_asked_for_everything_again() -> None:
    """A watch that is turned away is tried again from where it was."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.query.get("resourceVersion"))
        if "watch" in request.query:
            return web.Response(status=429)
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})

    async with api_server(answer) as client, reflecting(client):
        await until(lambda: len(asked), lambda count: count >= 4)
    assert asked[:4] == [None, "7", "7", "7"]


@pytest.mark.parametrize(
    "news", [b"", orjson.dumps({"type": "ADDED", "object": {"metadata": {"name": "p"}}}) + b"\n"], ids=["none", "same"]
)
async def test_a_watch_that_always_ends_at_once_is_not_hammered(news: bytes) -> None:
    asked = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if "watch" in request.query:
            return web.Response(body=news)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async with api_server(answer) as client, reflecting(client) as reflector:
        await until(lambda: asked, lambda times: times > 1)
        await asyncio.sleep(1.0)
    assert asked < 24
    assert reflector.reflection.synced
    assert ("ended at once" in str(reflector.problem)) is (news == b"")


async def test_pods_of_a_new_selector_are_as_old_as_those_of_the_last() -> None:
    """The selector changes and pods are not told any more: those that match both stay, and grow old."""
    old = {"metadata": {**named("p")["metadata"]}, "spec": {"selector": {"matchLabels": {"a": "b"}}}}
    old["spec"]["targetPorts"] = [{"number": 8000}]
    new = {**old, "spec": {**old["spec"], "selector": {"matchLabels": {"c": "d"}}}}
    pod = {"metadata": {**named("pod")["metadata"], "labels": {"a": "b", "c": "d"}}}
    pod["status"] = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    changes = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        is_pod = request.path.endswith("/pods")
        if request.query.get("labelSelector") == "c=d":
            return web.Response(status=503)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pod if is_pod else old]})
        response = web.StreamResponse()
        await response.prepare(request)
        await changes.wait()
        if not is_pod:
            await response.write(orjson.dumps({"type": "MODIFIED", "object": new}) + b"\n")
        await asyncio.sleep(60)
        return response

    now_s, store = 100.0, PoolStore()
    async with api_server(answer) as client:
        discovery = KubeDiscovery(
            KubeOptions(PoolByName("p"), "ns"),
            client,
            store,
            clock=lambda: now_s,
            rng=random.Random(1),
            on_error=lambda *_: None,
        )
        task = asyncio.create_task(discovery.run())
        try:
            await until(lambda: (len(store.snapshot()), discovery.age_s), lambda said: said == (1, 0))
            now_s = 107.0
            changes.set()
            await until(lambda: discovery.state()["selector"], lambda said: said == "c=d")
            assert (len(store.snapshot()), discovery.age_s) == (1, 7)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_events_that_follow_close_upon_each_other_are_stated_together() -> None:
    """When it takes long to state the pool, as it does of ten thousand pods; what came last holds."""
    first = {"metadata": {**named("pod")["metadata"], "labels": {}}, "status": {"podIP": "10.0.0.1"}}
    first["status"]["conditions"] = [{"type": "Ready", "status": "True"}]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [first]})
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(2, 9):
            pod = {**first, "status": {**first["status"], "podIP": f"10.0.0.{number}"}}
            await response.write(orjson.dumps({"type": "MODIFIED", "object": pod}) + b"\n")
            await asyncio.sleep(0.005)
        await asyncio.sleep(60)
        return response

    now_s, store, stated = 100.0, PoolStore(), []

    def takes_long(changes: EndpointChanges) -> None:
        nonlocal now_s
        now_s += 0.25
        stated.append(changes)

    store.subscribe(takes_long)
    async with api_server(answer) as client:
        discovery = KubeDiscovery(
            KubeOptions(PodsBySelector("p", parse_selector("a"), (8000,)), "ns"),
            client,
            store,
            clock=lambda: now_s,
            rng=random.Random(1),
            on_error=lambda *_: None,
        )
        task = asyncio.create_task(discovery.run())
        try:
            await until(lambda: [e.host for e in store.snapshot().endpoints], lambda said: said == ["10.0.0.8"])
            assert 2 <= len(stated) < 8
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("server", "proxy"),
    [("https://10.96.0.1:443", None), ("https://kubernetes.default.svc", None), ("https://1.2.3.4", "http://proxy:1")],
)
def test_the_proxy_of_the_environment_is_not_for_what_it_excepts(
    server: str, proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "10.96.0.0/12,.svc"}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.delenv(name.lower(), raising=False)
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
    config["clusters"] = [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}]
    config["contexts"] = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    config["users"] = [{"name": "u", "user": {"token": "t"}}]
    (tmp_path / "k").write_bytes(orjson.dumps(config))
    assert load_access(str(tmp_path / "k")).proxy == proxy
