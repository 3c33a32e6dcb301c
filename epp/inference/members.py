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
_STRING_OR_BRACKET = re.compile(_STRING.pattern + rb"|[\[\]{}]", re.DOTALL)


class NotAnObjectError(ValueError):
    """The bytes are not a JSON object."""


def members(data: bytes, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield `(key, value_start, value_end)` for each member of the object that begins at `start`."""
    opening = _OPENING.match(data, start)
    if opening is None:
        raise NotAnObjectError
    at = opening.end()
    if data[at : at + 1] == b"}":
        return
    while True:
        key = _STRING.match(data, at)
        colon = _COLON.match(data, key.end()) if key else None
        if key is None or colon is None:
            raise NotAnObjectError
        end = _value_end(data, colon.end())
        yield string_value(key.group()), colon.end(), end
        after = _AFTER_VALUE.match(data, end)
        if after is None:
            raise NotAnObjectError
        if after.group(1) == b"}":
            return
        at = after.end()


def string_value(raw: bytes) -> str:
    """The string that a JSON string literal stands for."""
    if b"\\" not in raw:
        return raw[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(raw))
    except ValueError:
        raise NotAnObjectError from None


def _value_end(data: bytes, start: int) -> int:
    first = data[start : start + 1]
    if first == b'"':
        string = _STRING.match(data, start)
        if string is not None:
            return string.end()
    elif first in (b"{", b"["):
        return _nested_end(data, start)
    else:
        scalar = _SCALAR.match(data, start)
        if scalar is not None:
            return scalar.end()
    raise NotAnObjectError


def _nested_end(data: bytes, start: int) -> int:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data, start):
        bracket = match.group() if match.end() - match.start() == 1 else b""
        if bracket in (b"{", b"["):
            depth += 1
        elif bracket:
            depth -= 1
            if depth == 0:
                return match.end()
    raise NotAnObjectError
