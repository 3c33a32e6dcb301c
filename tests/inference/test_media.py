"""Pictures say their size in their first bytes; whatever they claim is only a claim."""

import base64
import struct

import pytest

from epp.inference.media import media
from epp.inference.request import MediaKind


def png(width, height):
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06\0\0\0" + bytes(40)


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(40)


def jpeg(width, height, metadata=b"Exif" * 100):
    app = b"\xff\xe1" + struct.pack(">H", 2 + len(metadata)) + metadata
    tables = b"\xff\xc4\x00\x0a" + bytes(8) + b"\xff\xcc\x00\x0a" + bytes(8)
    frame = tables + b"\xff\xff\xc2" + struct.pack(">HBHH", 11, 8, height, width) + bytes(20)
    return b"\xff\xd8" + app + frame


def image(data):
    return media(MediaKind.IMAGE, "data:image/x;base64," + base64.b64encode(data).decode())


@pytest.mark.parametrize("picture", [png, gif, jpeg])
def test_pictures_say_their_size(picture):
    found = image(picture(1024, 512))
    assert (found.width, found.height) == (1024, 512)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8" + b"\xff" * 500,
        b"\xff\xd8\xff\xe1\x00\x00" + bytes(500),
        png(0, 5),
        png(5, 5)[:20],
        gif(5, 5)[:7],
        jpeg(5, 0),
        b"RIFF....WEBP",
    ],
)
def test_a_size_that_cannot_be_read_is_unknown(data):
    found = image(data)
    assert (found.width, found.height) == (None, None)


def test_broken_base64_is_a_picture_of_unknown_size():
    for text in ("data:image/png;base64,é", "data:image/png;base64,A=B=C=D=", "data:,"):
        assert media(MediaKind.IMAGE, text).width is None


def test_bare_base64_is_inline_data_and_a_url_is_not():
    bare = media(MediaKind.IMAGE, base64.b64encode(png(64, 32)).decode(), inline=True)
    assert (bare.width, bare.height) == (64, 32)
    assert media(MediaKind.IMAGE, base64.b64encode(png(64, 32)).decode()).width is None


def test_nothing_names_nothing():
    assert media(MediaKind.IMAGE, "") is None
