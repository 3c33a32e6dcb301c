"""Protobuf's wire format, as far as we read and write it by hand: fields that are a length and so many bytes.

Only where it is worth it: a body message is two fields around bytes that we do not look into, and most of our replies
are the same bytes over and over. Everything else goes through protobuf's own objects.
"""

from typing import Final

TRUE: Final = b"\x01"

_MAX_LENGTH_BYTES: Final = 4  # 256 MiB: more than any transport lets through


def varint(value: int) -> bytes:
    """A number of 0 or more."""
    if value < 0x80:
        return value.to_bytes(1)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, payload: bytes) -> bytes:
    """A field with bytes, a text or a message. `tag`: its number and wire type, of one byte."""
    return b"%c%b%b" % (tag, varint(len(payload)), payload)


def delimited(data: bytes, at: int) -> tuple[int, int]:
    """The length that stands at `at`, as where what it measures begins and ends; the end may be beyond the data.

    Raises:
        IndexError: it is cut off.
        ValueError: it is unusually long, which need not be wrong.
    """
    length = data[at]
    at += 1
    if length < 0x80:
        return at, at + length
    length &= 0x7F
    for shift in range(7, 7 * _MAX_LENGTH_BYTES, 7):
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, at + length
    raise ValueError("a length of more bytes than usual")
