"""One HTTP response, read from bytes as they come: no socket, no clock.

HTTP itself is read by llhttp, Node's parser (httptools). Decided here is what is believed of a machine that may be
broken, restarting or no model server at all: a page is the body of a plain 200 of bounded size, and what surrounds it
is bounded too. A redirect is an error: whoever follows one can be sent anywhere.
"""

import zlib

import httptools

from epp.signals.errors import ScrapeError, ScrapeErrorKind

MAX_FRAMING_BYTES = 1 << 16  # status line, headers, trailers
_MAX_BYTES_PER_BODY_BYTE = 9  # a body in chunks of one byte has six


class PageResponse:
    """Reads one response. A body of more than `max_page_bytes`, packed or unpacked, is an error."""

    def __init__(self, max_page_bytes: int) -> None:
        self._max_page_bytes = max_page_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._heard_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._encoding = "identity"
        self._is_framed = False  # its end is told by more than the end of the connection
        self._is_interim = False
        self._in_body = False
        self._is_complete = False
        self._keeps_alive = False
        self._has_surplus = False
        self._failure: ScrapeError | None = None

    @property
    def is_unheard(self) -> bool:
        """Not a byte has come."""
        return not self._heard_bytes

    @property
    def keeps_connection(self) -> bool:
        """The connection can be used again. Of a response that is complete."""
        return self._is_framed and self._keeps_alive and not self._has_surplus

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes. The page once it is whole, unpacked; `None` before.

        Raises:
            ScrapeError: there will be none.
        """
        self._heard_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                raise self._failure or ScrapeError(ScrapeErrorKind.PROTOCOL, type(error).__name__) from error
            self._has_surplus = True
        if self._failure is not None:
            raise self._failure
        if self._is_complete:
            return self._page()
        if self._heard_bytes > MAX_FRAMING_BYTES + self._body_bytes * _MAX_BYTES_PER_BODY_BYTE:
            raise ScrapeError(ScrapeErrorKind.PROTOCOL, "headers without end")
        return None

    def end(self) -> bytes:
        """The connection has ended: the page, if that is what tells its end.

        Raises:
            ScrapeError: it broke off.
        """
        if self.is_unheard:
            raise ScrapeError(ScrapeErrorKind.CONNECTION, "closed without an answer")
        if not self._in_body or self._is_framed:
            raise ScrapeError(ScrapeErrorKind.PROTOCOL, "broke off")
        return self._page()

    def _page(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return body if self._encoding == "identity" else _unpacked(body, self._max_page_bytes)

    def _fail(self, kind: ScrapeErrorKind, detail: str) -> None:
        self._failure = self._failure or ScrapeError(kind, detail)

    # --- called by the parser ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_surplus = self._is_complete
        self._is_interim = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._is_framed = True
            if value.isdigit() and int(value[:20]) > self._max_page_bytes:
                self._fail(ScrapeErrorKind.TOO_LARGE, f"more than {self._max_page_bytes} bytes")
        elif name == b"transfer-encoding":
            self._is_framed = True
            if value.strip().lower() != b"chunked":
                self._fail(ScrapeErrorKind.PROTOCOL, "Transfer-Encoding is not chunked")
        elif name == b"content-encoding":
            self._encoding = value.strip().lower().decode("latin-1")
            if self._encoding not in ("identity", "gzip", "deflate"):
                self._fail(ScrapeErrorKind.ENCODING, "Content-Encoding is none of identity, gzip, deflate")

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200 and status != 101
        if self._is_interim:
            return
        if status != 200:
            # Whatever else is wrong with it: this is the reason.
            kind = ScrapeErrorKind.REDIRECT if 300 <= status < 400 else ScrapeErrorKind.STATUS
            self._failure = ScrapeError(kind, f"HTTP {status}")
        self._in_body = True

    def on_body(self, data: bytes) -> None:
        if self._is_complete or self._failure is not None:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._max_page_bytes:
            self._body.clear()
            self._fail(ScrapeErrorKind.TOO_LARGE, f"more than {self._max_page_bytes} bytes")
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if not self._is_complete and not self._is_interim:
            self._is_complete = True
            self._keeps_alive = self._parser.should_keep_alive()


def _unpacked(body: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: gzip or zlib, by its first bytes
    try:
        page = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ScrapeError(ScrapeErrorKind.ENCODING, str(error)) from error
    if len(page) > max_bytes:
        raise ScrapeError(ScrapeErrorKind.TOO_LARGE, f"more than {max_bytes} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ScrapeError(ScrapeErrorKind.ENCODING, "body is not one complete packed stream")
    return page
