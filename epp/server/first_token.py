"""Finds the first token in a response as it passes by, then stops looking."""

from typing import Final

from epp.inference.first_token import has_token
from epp.inference.request import Api
from epp.wire.sse import SseReader

# A response may open with an event that repeats the whole request; one longer than this holds no first token.
MAX_EVENT_BYTES: Final = 64 * 1024
# A stream that has said so much and no token yet is in a format that we do not know.
MAX_BYTES: Final = 1024 * 1024

# Where an event's JSON begins. Text that the model generated cannot contain it: a quote inside JSON is escaped.
_TOKEN_EVENT: Final = b'data: {"'
_TIGHT_TOKEN_EVENT: Final = b'data:{"'


class FirstToken:
    """Watches one response.

    Of a stream of events that is the first event with something generated in it (see `has_token`); of anything else,
    such as JSON or a compressed stream, it is the first byte.

    Attributes:
        token_events: events with JSON from the first token on; counted by a search per chunk, so that an event whose
            beginning is cut by chunks may be missed.
    """

    __slots__ = ("_api", "_bytes", "_reader", "seen", "token_events")

    def __init__(self, api: Api, *, readable_events: bool) -> None:
        self._api = api
        self._reader = SseReader(MAX_EVENT_BYTES) if readable_events else None
        self._bytes = 0
        self.seen = False
        self.token_events = 0

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes. True once: when they hold the first token."""
        if self.seen:
            if self._reader is not None:
                self.token_events += chunk.count(_TOKEN_EVENT) + chunk.count(_TIGHT_TOKEN_EVENT)
            return False
        if not chunk:
            return False
        self.seen = self._looks_like_it(chunk)
        return self.seen

    def _looks_like_it(self, chunk: bytes) -> bool:
        if self._reader is None:
            return True
        self._bytes += len(chunk)
        at = 0
        while at < len(chunk):  # event by event: what comes behind the first token, in one chunk with it, is not read
            end = chunk.find(b"\n\n", at) + 2
            if end < 2:
                end = len(chunk)
            payloads = self._reader.feed(chunk[at:end])
            for index, payload in enumerate(payloads):
                if has_token(self._api, payload):
                    self.token_events = sum([later.startswith(b"{") for later in payloads[index:]])
                    self.token_events += chunk.count(_TOKEN_EVENT, end) + chunk.count(_TIGHT_TOKEN_EVENT, end)
                    return True
            at = end
        return self._bytes > MAX_BYTES
