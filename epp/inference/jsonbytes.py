"""JSON as model servers read it: strict first and fast, then as lenient as they are.

orjson reads nearly every body. What it refuses may still be fine for a model server that uses Python's own reader
(a byte order mark, a lone surrogate, NaN, a number beyond double), so a refusal is checked there before a body is
called malformed. What is nested too deep for either, or holds a number too long for either, is not called malformed:
its meaning is unknown to us, and the server may know better.
"""

import json

import orjson


class MalformedError(ValueError):
    """The bytes are not JSON."""


class UnreadableError(ValueError):
    """The bytes may be JSON, but go beyond what is worth reading here."""


def loads(data: bytes) -> object:
    """Parse JSON. Raises `MalformedError` or `UnreadableError`; never anything else, and never quotes the data."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        value: object = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise MalformedError("not valid JSON") from None
    except (RecursionError, ValueError):
        raise UnreadableError("nested too deep, or a number too long") from None
    return value


def dumps(value: object) -> bytes:
    """JSON in one canonical spelling, keys in the order given. Raises `UnreadableError` if it cannot be written."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise UnreadableError("cannot be written as JSON") from None


def utf8(text: str) -> bytes:
    """UTF-8, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")
