"""A request on its way to a decision: what is known of it, and the bytes that are kept until then."""

from typing import Final

from epp.wire.codec import Message
from epp.wire.events import BodyMode, BodyTooLarge, Headers, RequestReady
from epp.wire.table import Kind

# Members of enums, found once: up to Python 3.11 to name one through its class takes as long as a call.
_BODY: Final = Kind.BODY
_BODY_END: Final = Kind.BODY_END
_TRAILERS: Final = Kind.TRAILERS
_HEADERS: Final = Kind.HEADERS
_BUFFERED_PARTIAL: Final = BodyMode.BUFFERED_PARTIAL


class Gathering:
    """Bounded: the first byte too many ends the keeping for good, and lets go of what was kept."""

    __slots__ = ("_chunks", "_kept_bytes", "_max_body_bytes", "_subset", "headers", "overflowed")

    def __init__(self, max_body_bytes: int) -> None:
        self.headers = Headers({})
        self.overflowed = False
        self._max_body_bytes = max_body_bytes
        self._subset: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._kept_bytes = 0

    def note(self, message: Message) -> None:
        """Remember what a message says beside its bytes. Of several subset hints the last one counts."""
        if message.headers is not None:
            self.headers = message.headers
        subset = message.beside.subset
        if subset is not None:
            self._subset = subset

    def count(self, n_bytes: int) -> bool:
        """Count bytes that are kept for this request, here or elsewhere. False: they must not be kept."""
        self._kept_bytes += n_bytes
        if self._kept_bytes > self._max_body_bytes:
            self.overflowed = True
            self._chunks.clear()
        return not self.overflowed

    def add(self, chunk: bytes) -> None:
        """Keep what has been counted."""
        self._chunks.append(chunk)

    def ready(self, kind: Kind, mode: BodyMode) -> RequestReady:
        """The request as it stands with its part `kind`, after which nothing more is waited for."""
        body_shown = kind in (_BODY, _BODY_END, _TRAILERS)
        has_body = body_shown or kind is _HEADERS
        # In BUFFERED_PARTIAL the end of a body may be missing, or be marked by trailers: one cannot tell.
        is_whole = body_shown and not (mode is _BUFFERED_PARTIAL and kind is _BODY)
        body = b"".join(self._chunks) if body_shown else None
        self._chunks.clear()
        return RequestReady(self.headers, body, is_whole or not has_body, has_body, self._subset)

    def too_large(self) -> BodyTooLarge:
        return BodyTooLarge(self.headers, self._max_body_bytes)
