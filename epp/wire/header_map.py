"""Reads a `HeaderMap`. Headers are the bulk of what a request costs here, and most of them are those of many requests.

So a header is known by its bytes, and one that was read lately is not read again. That the many streams which are open
hold the same text, and not each its own, counts as much.
"""

from functools import lru_cache
from typing import Final

from epp.wire import ext_proc_pb2 as pb
from epp.wire.protobuf import delimited

_HEADER: Final = 0x0A  # the tag of `HeaderMap.headers`

# What is longer is not remembered: credentials are longer.
_MAX_REMEMBERED_BYTES: Final = 64


def header_map(data: bytes, at: int, end: int, max_headers: int) -> dict[str, str] | None:
    """Values by name of the `HeaderMap` between two places; `None` if it holds anything else, or too many headers."""
    pairs = []
    while at < end:
        if data[at] != _HEADER:
            return None
        size = data[at + 1]
        if size <= _MAX_REMEMBERED_BYTES:
            at += 2
            stop = at + size
            pairs.append(_known_header(data[at:stop]))
        else:
            at, stop = delimited(data, at + 1)
            pairs.append(_header(data[at:stop]))
        at = stop
    return dict(pairs) if at == end and len(pairs) <= max_headers else None


def _header(entry: bytes) -> tuple[str, str]:
    """Name in lower case, and value, of a serialized `HeaderValue`. Raises `DecodeError`."""
    return name_and_value(pb.HeaderValue.FromString(entry))


_known_header = lru_cache(4096)(_header)


def name_and_value(entry: pb.HeaderValue) -> tuple[str, str]:
    raw = entry.raw_value
    return entry.key.lower(), _text(raw) if raw else entry.value


def _text(raw: bytes) -> str:
    """UTF-8 where it is, else Latin-1, which every byte string is. Never a lone surrogate: safe to encode later."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
