"""Decoding a compressed request body, to look into it. What is sent on stays as it came."""

import zlib

# Enough for any prompt that a model can take; a bomb stops here, in memory and in time.
MAX_DECODED_BYTES = 16 << 20

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def decode(body: bytes, content_encoding: str | None) -> bytes | None:
    """The plain body; `None` when the coding is unknown, the data is broken, or it grows beyond the cap."""
    match (content_encoding or "identity").strip().lower():
        case "identity" | "":
            return body
        case "gzip" | "x-gzip":
            return _inflate(body, _GZIP_OR_ZLIB)
        case "deflate":
            # By the standard a zlib stream; some clients send the bare stream.
            plain = _inflate(body, _GZIP_OR_ZLIB)
            return plain if plain is not None else _inflate(body, _RAW)
    return None


def _inflate(data: bytes, window_bits: int) -> bytes | None:
    members: list[bytes] = []
    room = MAX_DECODED_BYTES
    while data:
        stream = zlib.decompressobj(window_bits)
        try:
            plain = stream.decompress(data, room + 1)
        except zlib.error:
            return None
        if not stream.eof or len(plain) > room:
            return None
        members.append(plain)
        room -= len(plain)
        data = stream.unused_data
    return b"".join(members)
