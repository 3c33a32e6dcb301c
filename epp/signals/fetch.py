"""Fetching one page over HTTP, and naming what can go wrong with it.

A page is bounded in time and in size, before and after unpacking. A redirect is an error: whoever follows one can be
sent anywhere.
"""

import asyncio
import ssl
import zlib
from enum import StrEnum

import aiohttp
from yarl import URL

from epp.signals.settings import ScrapeSettings

_MAX_DETAIL = 200

# Packing costs the model server more than it saves on a local network, so it is not asked for.
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "User-Agent": "headroom-epp"}


class ScrapeErrorKind(StrEnum):
    """Why a scrape failed."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"  # refused, reset, no route, name not found
    TLS = "tls"
    PROTOCOL = "protocol"  # not HTTP, or HTTP that breaks off
    STATUS = "status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    ENCODING = "encoding"  # packed in a way that cannot be unpacked
    NOT_METRICS = "not_metrics"
    NO_ENGINE_METRICS = "no_engine_metrics"
    INTERNAL = "internal"  # a fault of our own

    @property
    def page_was_read(self) -> bool:
        """The page came; it is what it says that is of no use."""
        return self in (ScrapeErrorKind.NOT_METRICS, ScrapeErrorKind.NO_ENGINE_METRICS)


class ScrapeError(Exception):
    """A scrape failed; the text is one short line for a log."""

    def __init__(self, kind: ScrapeErrorKind, detail: str) -> None:
        super().__init__(f"{kind}: {' '.join(detail.split())[:_MAX_DETAIL]}")
        self.kind = kind


def open_session(context: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """A session for one endpoint: one connection, kept open between scrapes, closed with the session."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=1, ssl=context or True),
        headers=_HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


async def fetch_page(session: aiohttp.ClientSession, url: URL, settings: ScrapeSettings) -> bytes:
    """The body of the page at `url`.

    Raises:
        ScrapeError: there is none within the settings' bounds.
    """
    try:
        async with asyncio.timeout(settings.timeout_s), session.get(url, allow_redirects=False) as response:
            if 300 <= response.status < 400:
                raise ScrapeError(ScrapeErrorKind.REDIRECT, f"HTTP {response.status}")
            if response.status != 200:
                raise ScrapeError(ScrapeErrorKind.STATUS, f"HTTP {response.status}")
            return await _read_body(response, settings.max_page_bytes)
    except TimeoutError as error:
        raise ScrapeError(ScrapeErrorKind.TIMEOUT, f"nothing complete in {settings.timeout_s:g} s") from error
    except aiohttp.ClientSSLError as error:
        raise ScrapeError(ScrapeErrorKind.TLS, str(error)) from error
    except (aiohttp.ClientConnectionError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else None  # aiohttp's own text speaks of TLS without any
        raise ScrapeError(ScrapeErrorKind.CONNECTION, reason or str(error) or type(error).__name__) from error
    except aiohttp.ClientError as error:  # its text may quote what the server sent
        raise ScrapeError(ScrapeErrorKind.PROTOCOL, type(error).__name__) from error


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise ScrapeError(ScrapeErrorKind.ENCODING, "Content-Encoding is none of identity, gzip, deflate")
    if (response.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    if encoding == "identity":
        return bytes(body)
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: gzip or zlib, by its first bytes
    try:
        page = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ScrapeError(ScrapeErrorKind.ENCODING, str(error)) from error
    if len(page) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise ScrapeError(ScrapeErrorKind.ENCODING, "body is not one complete packed stream")
    return page


def _too_large(max_bytes: int) -> ScrapeError:
    return ScrapeError(ScrapeErrorKind.TOO_LARGE, f"more than {max_bytes} bytes")
