"""One connection to one metrics page, kept open between readings.

A reading is one write of the same bytes and a few calls back: a picker reads pages thousands of times a second, and a
client with sessions, cookies and redirects costs six times as much. A connection on which anything unexpected happened
is closed; the next reading opens another.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import cast

from yarl import URL

from epp.pool.endpoint import join_host_port
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.response import PageResponse


class PageConnection:
    """Reads the page at `url`, one reading at a time.

    Args:
        context: for https; `None` for http.
        timeout_s: for connecting, headers and body together.
        max_page_bytes: a longer page, packed or unpacked, is an error.
    """

    def __init__(self, url: URL, context: ssl.SSLContext | None, timeout_s: float, max_page_bytes: int) -> None:
        self._host, self._port = url.raw_host or "", url.port or 0
        self._context = context
        self._timeout_s = timeout_s
        self._max_page_bytes = max_page_bytes
        self._url = url
        self._requests: dict[tuple[str, ...], bytes] = {}
        self._wire: _Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def fetch(self, names: tuple[str, ...] = ()) -> bytes:
        """The body of the page; with `names`, asked only for the families of these names.

        Raises:
            ScrapeError: there is none within the bounds.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(self._request(names))
        except TimeoutError as error:
            raise ScrapeError(ScrapeErrorKind.TIMEOUT, f"nothing complete in {self._timeout_s:g} s") from error
        except OSError as error:
            raise _scrape_error(error) from error

    def _request(self, names: tuple[str, ...]) -> bytes:
        request = self._requests.get(names)
        if request is None:
            request = self._requests[names] = request_bytes(self._url, names)
        return request

    async def _fetch(self, request: bytes) -> bytes:
        if self._wire is not None and self._wire.is_open:
            wire = self._wire
            try:
                return await self._ask(wire, request)
            except ScrapeError:
                if not wire.was_lost_unheard:
                    raise
                # It was closing the connection when we asked, as a server may that keeps it open for a while only.
        return await self._ask(await self._connect(), request)

    async def _ask(self, wire: "_Wire", request: bytes) -> bytes:
        self._wire = None
        try:
            page = await wire.ask(request, PageResponse(self._max_page_bytes))
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        return page

    async def _connect(self) -> "_Wire":
        _, wire = await asyncio.get_running_loop().create_connection(
            _Wire,
            self._host,
            self._port,
            ssl=self._context,
            server_hostname=self._host if self._context is not None else None,
        )
        return wire


class _Wire(asyncio.Protocol):
    """The connection itself."""

    def __init__(self) -> None:
        self.is_open = True
        self.was_lost_unheard = False  # before a byte of the answer came
        self._transport: asyncio.Transport | None = None
        self._response: PageResponse | None = None
        self._page: asyncio.Future[bytes] | None = None

    async def ask(self, request: bytes, response: PageResponse) -> bytes:
        assert self._transport is not None
        self._response = response
        self._page = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._page

    def close(self) -> None:
        """At once: nothing that is still on its way is wanted."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        if self._page is None or self._page.done() or self._response is None:
            self.close()  # nobody asked
            return
        try:
            page = self._response.feed(data)
        except ScrapeError as error:
            self.close()
            self._page.set_exception(error)
            return
        if page is not None:
            if not self._response.keeps_connection:
                self.close()
            self._page.set_result(page)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._page is None or self._page.done() or self._response is None:
            return
        self.was_lost_unheard = self._response.is_unheard
        try:
            if error is not None:
                raise _scrape_error(error)
            self._page.set_result(self._response.end())
        except ScrapeError as broken_off:
            self._page.set_exception(broken_off)


def _scrape_error(error: Exception) -> ScrapeError:
    if isinstance(error, ssl.SSLError):
        return ScrapeError(ScrapeErrorKind.TLS, error.reason or str(error))
    reason = error.strerror if isinstance(error, OSError) else None
    return ScrapeError(ScrapeErrorKind.CONNECTION, reason or str(error) or type(error).__name__)


def request_bytes(url: URL, names: Iterable[str] = ()) -> bytes:
    """What asks for the page at `url`, or for the families of `names` on it.

    Packing costs the model server more than it saves on a local network, so it is not asked for.
    """
    return (
        f"GET {url.extend_query([('name[]', name) for name in names]).raw_path_qs} HTTP/1.1\r\n"
        f"Host: {join_host_port(url.raw_host or '', url.port or 0)}\r\nUser-Agent: headroom-epp\r\n"
        "Accept: text/plain;version=0.0.4\r\nAccept-Encoding: identity\r\n\r\n"
    ).encode()
