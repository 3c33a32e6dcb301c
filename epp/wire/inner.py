"""Messages that stand inside our replies, written by hand: header mutations and the metadata's `Struct`."""

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from epp.wire.protobuf import field

# Envoy fails a request whose header mutation exceeds its own limit of headers, 100 by default.
MAX_SET_HEADERS: Final = 100

CONTENT_LENGTH: Final = "content-length"

# Tags, which are a field's number and wire type. Of `HeaderMutation`, `HeaderValueOption` and `HeaderValue`:
_SET_HEADER: Final = 0x0A
_REMOVE_HEADER: Final = 0x12
_HEADER: Final = 0x0A
_NAME: Final = 0x0A
_RAW_VALUE: Final = 0x1A
# Said in full: Envoy's default here is not the one that its API documents.
_OVERWRITE_IF_EXISTS_OR_ADD: Final = b"\x18\x02"
# Of `google.protobuf.Struct`, of an entry of its map, and of `Value`:
_FIELDS: Final = 0x0A
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_NUMBER: Final = b"\x11"
_STRING: Final = 0x1A
_STRUCT: Final = 0x2A


def header_mutation(to_set: Mapping[str, str], to_remove: Iterable[str] = ()) -> bytes:
    """A `HeaderMutation`. What is set is not removed; a content-length follows from a body and is nobody's to set.

    Raises:
        ValueError: more headers to set than Envoy takes.
    """
    if len(to_set) > MAX_SET_HEADERS:
        raise ValueError(f"more than {MAX_SET_HEADERS} headers to set")
    values = {name.lower(): value for name, value in to_set.items()}
    values.pop(CONTENT_LENGTH, None)
    removed = dict.fromkeys(name for name in map(str.lower, to_remove) if name not in values)
    parts = [set_header(name, value) for name, value in values.items()]
    parts += [field(_REMOVE_HEADER, name.encode()) for name in removed]
    return b"".join(parts)


def set_header(name: str, value: str) -> bytes:
    """A field of a `HeaderMutation` that puts this value in place of all others."""
    header = field(_NAME, name.encode()) + field(_RAW_VALUE, value.encode(errors="replace"))
    return field(_SET_HEADER, field(_HEADER, header) + _OVERWRITE_IF_EXISTS_OR_ADD)


def entry(key: str, value: bytes) -> bytes:
    """A field of a `Struct`. `value`: one of those below."""
    return field(_FIELDS, field(_KEY, key.encode()) + field(_VALUE, value))


def string(text: str) -> bytes:
    return field(_STRING, text.encode())


def number(value: float) -> bytes:
    return _NUMBER + struct.pack("<d", value)


def struct_of(*entries: bytes) -> bytes:
    return field(_STRUCT, b"".join(entries))
