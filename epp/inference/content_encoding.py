"""Decoding a compressed request body, to look into it. What is sent on stays as it came."""

import zlib

# Enough for any prompt that a model can take; a bomb stops here, in memory and in time.
MAX_DECODED_BYTES = 16 << 20

# Members of one body, and how much of it is given to a decoder at once: what is left over after a member is copied, so
# a body of a million empty members must not be copied a million times. Tools that write blocks write them of 64 KiB.
_MAX_MEMBERS = 1024
_INPUT_BYTES = 64 << 10

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
    plain: list[bytes] = []
    room = MAX_DECODED_BYTES
    at = 0
    for _ in range(_MAX_MEMBERS):
        stream = zlib.decompressobj(window_bits)
        while not stream.eof:
            piece = data[at : at + _INPUT_BYTES]
            try:
                plain.append(stream.decompress(piece, room + 1))
            except zlib.error:
                return None
            room -= len(plain[-1])
            at += len(piece)
            if room < 0 or (not piece and not stream.eof):
                return None
        at -= len(stream.unused_data)
        if at == len(data):
            return b"".join(plain)
    return None
