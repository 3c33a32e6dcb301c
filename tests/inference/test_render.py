"""Sizes of pictures, and a prompt as bytes of four to a token."""

import base64
import struct

import pytest

from epp.inference.media import media
from epp.inference.render import MediaEstimate, render_prompt
from epp.inference.request import Media, MediaKind, Prompt

DEFAULTS = MediaEstimate()


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
    assert found.data_bytes == len(base64.b64encode(picture(1024, 512)))
    assert DEFAULTS.tokens(found) == 512


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
    assert DEFAULTS.tokens(found) == 640 * 360 // 1024


def test_broken_base64_is_a_picture_of_unknown_size():
    for text in ("data:image/png;base64,é", "data:image/png;base64,A=B=C=D=", "data:,"):
        assert media(MediaKind.IMAGE, text).width is None


def test_bare_base64_is_inline_data_and_a_url_is_not():
    bare = media(MediaKind.IMAGE, base64.b64encode(png(64, 32)).decode(), inline=True)
    assert (bare.width, bare.height) == (64, 32)
    assert media(MediaKind.IMAGE, "http://h/a.png").data_bytes is None


def test_nothing_names_nothing():
    assert media(MediaKind.IMAGE, "") is None


IMAGE = Media(MediaKind.IMAGE, 0x1122334455667788, 64, 32)  # 2 tokens
REPEAT = b"\x88\x77\x66\x55"


def test_text_is_its_bytes():
    assert render_prompt(Prompt((b"abcde",)), DEFAULTS) == b"abcde"
    assert render_prompt(Prompt((b"\1\0\0\0",), exact=True), DEFAULTS) == b"\1\0\0\0"
    assert render_prompt(Prompt(()), DEFAULTS) == b""


def test_a_picture_starts_on_a_token_boundary_and_repeats_its_hash():
    assert render_prompt(Prompt((b"abcde", IMAGE, b"xy")), DEFAULTS) == b"abcde\0\0\0" + REPEAT * 2 + b"xy"
    assert render_prompt(Prompt((b"abcd", IMAGE, IMAGE)), DEFAULTS) == b"abcd" + REPEAT * 4


def test_different_pictures_differ_from_the_picture_on():
    other = Media(MediaKind.IMAGE, 5, 64, 32)
    one, two = (render_prompt(Prompt((b"same", m, b"same")), DEFAULTS) for m in (IMAGE, other))
    assert one[:4] == two[:4]
    assert one[4:8] != two[4:8]


def test_claimed_sizes_do_not_decide_how_much_memory_is_taken():
    huge = Media(MediaKind.IMAGE, 1, 2**31, 2**31)
    assert len(render_prompt(Prompt((huge,) * 50 + (b"end",)), DEFAULTS)) == (4 << 20) + 3


@pytest.mark.parametrize(
    ("estimate", "medium", "tokens"),
    [
        (DEFAULTS, Media(MediaKind.IMAGE, 1), 225),
        (DEFAULTS, Media(MediaKind.IMAGE, 1, 8, 8), 1),
        (MediaEstimate(image_static_tokens=77), IMAGE, 77),
        (MediaEstimate(image_pixels_per_token=784, image_width=784, image_height=100), Media(MediaKind.IMAGE, 1), 100),
        (DEFAULTS, Media(MediaKind.VIDEO, 1), 20 * 225),
        (MediaEstimate(video_max_frames=8), Media(MediaKind.VIDEO, 1), 8 * 225),
        (MediaEstimate(video_min_frames=32), Media(MediaKind.VIDEO, 1), 32 * 225),
        (MediaEstimate(video_temporal_patch=2), Media(MediaKind.VIDEO, 1), 10 * 225),
        (MediaEstimate(video_max_tokens=1000), Media(MediaKind.VIDEO, 1), 1000),
        (MediaEstimate(video_frame_static_tokens=10), Media(MediaKind.VIDEO, 1), 200),
        (MediaEstimate(video_frame_stride=12), Media(MediaKind.VIDEO, 1), 20 * 225),
        (DEFAULTS, Media(MediaKind.AUDIO, 1, data_bytes=9), 3),
        (DEFAULTS, Media(MediaKind.AUDIO, 1), 1),
    ],
)
def test_estimates(estimate, medium, tokens):
    assert estimate.tokens(medium) == tokens
