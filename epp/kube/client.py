"""The few requests that are made to an API server, over aiohttp.

Every request opens its own connection: one that died without a word must not be handed to the next attempt, and there
is about one request a second. What is decoded is what is used: lists come in pages, events line by line.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import orjson

from epp.kube.access import Access
from epp.kube.failures import ApiFailure, Kind
from epp.kube.objects import Json, items, mapping, name_of, text, whole
from epp.kube.resources import Resource
from epp.problem import Problem

logger = logging.getLogger(__name__)

PAGE_OBJECTS = 100  # a page of pods is then about a megabyte, and decoded in a few milliseconds
MAX_LINE_BYTES = 16 * 2**20  # of one event; etcd stores no object above 1.5 MiB by default
CONNECT_TIMEOUT_S = 5.0
# What the API server is asked for when it is down or being restarted must not wait for it for long.
REQUEST_TIMEOUT_S = 10.0
_EVENTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class Page(NamedTuple):
    """Some of the objects of a list. `version`: the resource version that all of them are as of."""

    objects: list[Json]
    version: str


class KubeClient:
    """
    Args:
        load: finds the API server and credentials; called again when it does not accept the latter.
    """

    def __init__(self, load: Callable[[], Access]) -> None:
        self._load = load
        self._access = load()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def pages(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> AsyncGenerator[Page]:
        """All objects that there are. What does not look like a list is refused: it must not pass for an empty one."""
        more = {"limit": str(PAGE_OBJECTS)}
        while True:
            page = await self.request("GET", resource.path(namespace), query={**query, **more})
            if not isinstance(page.get("items", ""), list | None):
                raise ApiFailure(Kind.REFUSED, "an answer that is not a list")
            metadata = mapping(page, "metadata")
            yield Page(
                [obj for obj in items(page.get("items")) if isinstance(obj, dict) and name_of(obj)],
                text(metadata.get("resourceVersion")),
            )
            following = text(metadata.get("continue"))
            if not following:
                return
            more["continue"] = following

    async def watch(
        self, resource: Resource, namespace: str, query: Mapping[str, str]
    ) -> AsyncGenerator[list[tuple[str, Json]]]:
        """Events as (type, object), in the batches in which they come; at once an empty batch when the watch stands.

        Ends when the API server ends it in order. There is no time limit: the caller sets one.
        """
        query = {**query, "watch": "1", "allowWatchBookmarks": "true"}
        async with self._opened("GET", resource.path(namespace), query, None, None) as response:
            yield []
            rest = b""
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise ApiFailure(Kind.REFUSED, f"an event of more than {MAX_LINE_BYTES} bytes")
                if lines:
                    yield [_event(line) for line in lines if line.strip()]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Json:
        """The object that it answers with. Raises `ApiFailure`."""
        async with self._opened(method, path, query or {}, body, timeout_s) as response:
            return _decoded(await response.read())

    @asynccontextmanager
    async def _opened(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response with status 2xx. Errors of the connection while it is used are `ApiFailure`s as well."""
        try:
            async with asyncio.timeout(timeout_s):
                access = self._access
                headers = {"Accept": "application/json", **await self._credentials()}
                async with self._sessioned().request(
                    method,
                    access.url + path,
                    params=query,
                    data=None if body is None else orjson.dumps(body),
                    headers=headers if body is None else {**headers, "Content-Type": "application/json"},
                    ssl=True if access.tls is None else access.tls,
                    server_hostname=access.server_name,
                    proxy=access.proxy,
                    allow_redirects=False,  # an API server sends nobody elsewhere; a login page in front of it does
                ) as response:
                    if response.status >= 300:
                        await self._raise_for(response)
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiFailure(Kind.UNREACHABLE, _in_words(error, timeout_s)) from error

    async def _raise_for(self, response: aiohttp.ClientResponse) -> None:
        body = await response.content.read(64 * 2**10)
        try:
            said = text(mapping(orjson.loads(body)).get("message"))
        except orjson.JSONDecodeError:
            said = ""
        if response.status == 401:
            await self._load_again()
        elsewhere = f" to {response.headers['Location'][:200]!r}" if "Location" in response.headers else ""
        raise ApiFailure.of_status(response.status, (said or response.reason or "refused") + elsewhere)

    async def _credentials(self) -> Mapping[str, str]:
        try:
            return await asyncio.to_thread(self._access.headers)
        except Exception as error:  # whatever a plugin that is executed, or a file that is gone, comes up with
            raise ApiFailure(Kind.UNAUTHORIZED, f"no credentials: {type(error).__name__}: {error}") from error

    async def _load_again(self) -> None:
        try:
            self._access = await asyncio.to_thread(self._load)
        except Problem as problem:  # it was good once: the file may be about to be written
            logger.warning("%s", problem)

    def _sessioned(self) -> aiohttp.ClientSession:
        if self._session is None:  # made here: it belongs to the loop that runs
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                trust_env=False,
            )
        return self._session


def _decoded(body: bytes) -> Json:
    try:
        return mapping(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise ApiFailure(Kind.REFUSED, "an answer that is not JSON") from error


def _in_words(error: Exception, timeout_s: float | None) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            return os.strerror(number).lower() if number else f"cannot connect: {error.os_error}"
        case aiohttp.ClientPayloadError():
            return "the connection broke"
        case TimeoutError() if timeout_s is not None:
            return f"nothing within {timeout_s:g} s"
    return str(error) or type(error).__name__


def _event(line: bytes) -> tuple[str, Json]:
    event: Any = _decoded(line)
    kind, obj = text(event.get("type")), mapping(event, "object")
    if kind == "ERROR":
        raise ApiFailure.of_status(whole(obj.get("code")) or 0, text(obj.get("message")) or "the watch failed")
    if kind not in _EVENTS or (kind != "BOOKMARK" and not name_of(obj)):
        raise ApiFailure(Kind.REFUSED, "an answer that is not an event")
    return kind, obj
