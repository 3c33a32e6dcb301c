"""Walking the members of a JSON object in its original bytes.

To change one value without touching another byte, one must know where it stands. These few regular expressions find
that: strings and nested values are skipped in C, only the members of the object itself cost a step of Python. The bytes
are expected to be JSON; where they turn out not to be, the walk stops with `NotAnObjectError`.
"""

import json
import re
from collections.abc import Iterator

_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+\{[ \t\r\n]*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_AFTER_VALUE = re.compile(rb"[ \t\r\n]*+([,}])[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^ \t\r\n,\]}\[{\":]++")
_FLAT = rb"[^\[\]{}\"]++|" + _STRING.pattern


def _balanced(levels: int) -> bytes:
    """A pattern for anything whose brackets close again and nest up to `levels` deep."""
    pattern = _FLAT
    for _ in range(levels):
        pattern = _FLAT + rb"|[\[{](?:" + pattern + rb")*+[\]}]"
    return rb"(?:" + pattern + rb")*+"


# Common bodies are crossed in one match; deeper ones take a step of Python per level beyond.
_BALANCED = re.compile(_balanced(8), re.DOTALL)

# Members plus deep brackets of one object. Real bodies have some dozens; bodies made to waste time are given up on.
_MAX_STEPS = 20_000


class NotAnObjectError(ValueError):
    """The bytes are not a JSON object, or one beyond reason."""


def members(data: bytes, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield `(key, value_start, value_end)` for each member of the object that begins at `start`."""
    opening = _OPENING.match(data, start)
    if opening is None:
        raise NotAnObjectError
    at = opening.end()
    if data[at : at + 1] == b"}":
        return
    steps = iter(range(_MAX_STEPS))
    for _ in steps:
        key = _STRING.match(data, at)
        colon = _COLON.match(data, key.end()) if key else None
        if key is None or colon is None:
            break
        end = _value_end(data, colon.end(), steps)
        yield string_value(key.group()), colon.end(), end
        after = _AFTER_VALUE.match(data, end)
        if after is None:
            break
        if after.group(1) == b"}":
            return
        at = after.end()
    raise NotAnObjectError


def string_value(raw: bytes) -> str:
    """The string that a JSON string literal stands for."""
    if b"\\" not in raw:
        return raw[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(raw))
    except ValueError:
        raise NotAnObjectError from None


def _value_end(data: bytes, start: int, steps: Iterator[int]) -> int:
    first = data[start : start + 1]
    if first in (b"{", b"["):
        return _nested_end(data, start, steps)
    value = (_STRING if first == b'"' else _SCALAR).match(data, start)
    if value is None:
        raise NotAnObjectError
    return value.end()


def _nested_end(data: bytes, start: int, steps: Iterator[int]) -> int:
    at = start + 1
    depth = 1
    for _ in steps:
        crossed = _BALANCED.match(data, at)
        at = crossed.end() if crossed else at
        bracket = data[at : at + 1]
        at += 1
        if bracket in (b"{", b"["):
            depth += 1
        elif bracket in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return at
        else:
            break
    raise NotAnObjectError
