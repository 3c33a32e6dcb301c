"""Pictures, films and sounds in a prompt: found in a content block, known by a hash, measured when the data allows.

Clients write media in many ways: `{"type": "image_url", "image_url": {"url": …}}` or a bare string, `input_audio`,
Anthropic's `source`, a file id, or (vLLM) a `uuid` alone for what was sent before. Whatever names the content is its
identity: two prompts with equal text and different pictures must not look alike.
"""

import base64
from collections.abc import Mapping

from xxhash import xxh64_intdigest

from epp.inference.jsonbytes import utf8
from epp.inference.request import Media, MediaKind

_KINDS = {
    "image_url": MediaKind.IMAGE,
    "input_image": MediaKind.IMAGE,
    "image": MediaKind.IMAGE,
    "video_url": MediaKind.VIDEO,
    "input_video": MediaKind.VIDEO,
    "video": MediaKind.VIDEO,
    "audio_url": MediaKind.AUDIO,
    "input_audio": MediaKind.AUDIO,
    "audio": MediaKind.AUDIO,
}
_REFERENCE_KEYS = ("image_url", "video_url", "audio_url", "input_audio", "source", "image", "video", "audio", "file_id")

# Where a picture keeps its size: PNG and GIF at once, JPEG behind its metadata segments.
_FIRST_BASE64_CHARS = 64
_JPEG_BASE64_CHARS = 128 << 10
_JPEG_MAX_SEGMENTS = 64
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def media_in(block: Mapping[str, object]) -> Media | None:
    """The medium that a content block holds; `None` if it holds none, or nothing names its content."""
    block_type = block.get("type")
    if isinstance(block_type, str):
        kind = _KINDS.get(block_type)
    else:
        kind = next((kind for key, kind in _KINDS.items() if block.get(key) is not None), None)
    if kind is None:
        return None
    for key in _REFERENCE_KEYS:
        value = block.get(key)
        inline = False
        if isinstance(value, dict):
            inline = isinstance(value.get("data"), str)
            value = value.get("data") if inline else value.get("url") or value.get("file_id")
        if isinstance(value, str) and value:
            return media(kind, value, inline=inline, uuid=block.get("uuid"))
    return media(kind, "", uuid=block.get("uuid"))


def media(kind: MediaKind, reference: str, *, inline: bool = False, uuid: object = None) -> Media | None:
    """A medium from its URL, data URI, id, or (`inline`) bare base64; `None` if nothing names its content.

    A `uuid` that the client gives goes before everything else as identity, as it does in vLLM.
    """
    identity = uuid if isinstance(uuid, str) and uuid else reference
    if not identity:
        return None
    content_hash = xxh64_intdigest(utf8(identity))
    start = 0
    if reference[:5].lower() == "data:":
        start, inline = reference.find(",") + 1, True
    if not inline or kind is not MediaKind.IMAGE:
        return Media(kind, content_hash)
    width, height = _image_size(reference[start : start + _JPEG_BASE64_CHARS]) or (None, None)
    return Media(kind, content_hash, width, height)


def _image_size(base64_text: str) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF or JPEG, from its beginning."""
    head = _decoded(base64_text[:_FIRST_BASE64_CHARS])
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return _positive(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return _positive(int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little"))
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(_decoded(base64_text))
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_JPEG_MAX_SEGMENTS):
        if at + 9 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _JPEG_FRAME_MARKERS:
            return _positive(int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big"))
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _positive(width: int, height: int) -> tuple[int, int] | None:
    return (width, height) if width and height else None


def _decoded(base64_text: str) -> bytes:
    try:
        return base64.b64decode(base64_text[: len(base64_text) // 4 * 4])
    except ValueError:
        return b""
