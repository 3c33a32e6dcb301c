"""The model's name in a request and in its response, changed in place: every other byte stays as it was."""

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from epp.inference.members import NotAnObjectError, members, string_value

# Where a response names its model: at the top, or in the response or message that an event wraps.
_WRAPPERS = ("response", "message")


class Rewritten(NamedTuple):
    """Where a request goes instead. `by`: what asked for it, for people."""

    model: str
    by: str


# A longer event or body passes untouched rather than being held.
MAX_EVENT_BYTES = 1 << 20
MAX_JSON_BYTES = 16 << 20


def splice_model(body: bytes, model: str) -> list[bytes] | None:
    """Put another model name into a request body.

    Every top-level `model` that is a string is replaced, since servers differ in which of two equal keys they read.

    Returns:
        The new body in parts; `None` if the body is no JSON object or names no model.
    """
    try:
        spans = [
            (start, end) for key, start, end in members(body) if key == "model" and body[start : start + 1] == b'"'
        ]
    except NotAnObjectError:
        return None
    return _replaced(body, spans, orjson.dumps(model)) if spans else None


def insert_model(body: bytes, model: str) -> list[bytes] | None:
    """Name a model in a request body that names none, before its first member.

    Returns:
        The new body in parts; `None` if the body is no JSON object, or has a `model` of whatever type.
    """
    try:
        keys = [key for key, _, _ in members(body)]
    except NotAnObjectError:
        return None
    if "model" in keys:
        return None
    start = body.index(b"{") + 1
    return [body[:start], b'"model":', orjson.dumps(model), b"," if keys else b"", body[start:]]


class ResponseModelRewriter:
    """Gives a response the model name that the client asked for.

    Only whole names are restored, and only where a response names its model; text that mentions the name is let alone.
    A stream is rewritten line by line (servers write each event's data on one line) and held back only from the last
    line break on. A JSON body is held to its end.

    Args:
        target_model: the name that the model server was asked for, and answers with.
        client_model: the name that the client asked for.
        event_stream: the response is SSE.
    """

    def __init__(self, target_model: str, client_model: str, *, event_stream: bool) -> None:
        self._target = target_model
        self._replacement = orjson.dumps(client_model)
        self._event_stream = event_stream
        self._limit = MAX_EVENT_BYTES if event_stream else MAX_JSON_BYTES
        self._held: list[bytes] = []  # the beginning of a line, or of the body
        self._held_bytes = 0
        self._passing = False  # the rest of an overlong line, or body, passes untouched

    def feed(self, data: bytes, last: bool) -> bytes:
        """The bytes that may go to the client now. After the last piece nothing is held."""
        ready: list[bytes] = []
        if self._event_stream:
            data = self._whole_lines(data, ready)
        self._hold(data, ready)
        if last:
            ready.append(self._rewritten(self._release()))
        return b"".join(ready)

    def _whole_lines(self, data: bytes, ready: list[bytes]) -> bytes:
        """Move every line that ends in `data` to `ready`; return what follows."""
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut:
            return data
        lines = data[:cut].splitlines(keepends=True)
        if self._passing:
            ready.append(lines.pop(0))
            self._passing = False
        elif self._held:
            lines[0] = self._release() + lines[0]
        ready += map(self._rewritten, lines)
        return data[cut:]

    def _hold(self, data: bytes, ready: list[bytes]) -> None:
        if self._passing:
            ready.append(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self._limit:
            self._passing = True
            ready.append(self._release())

    def _release(self) -> bytes:
        held = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return held

    def _rewritten(self, piece: bytes) -> bytes:
        """A line with its end, or a whole body."""
        if b'"model"' not in piece:
            return piece
        start = 0
        if self._event_stream:
            if not piece.startswith(b"data:") or len(piece.rstrip(b"\r\n")) > self._limit:
                return piece
            start = len(b"data:")
        try:
            return b"".join(_replaced(piece, list(self._spans(piece, start)), self._replacement))
        except NotAnObjectError:
            return piece

    def _spans(self, piece: bytes, start: int, wrapped: bool = False) -> Iterator[tuple[int, int]]:
        for key, begin, end in members(piece, start):
            first = piece[begin : begin + 1]
            if key == "model" and first == b'"' and string_value(piece[begin:end]) == self._target:
                yield begin, end
            elif key in _WRAPPERS and first == b"{" and not wrapped:
                yield from self._spans(piece, begin, wrapped=True)


def _replaced(data: bytes, spans: list[tuple[int, int]], value: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    for start, end in spans:
        parts += [data[at:start], value]
        at = end
    return [*parts, data[at:]]
