"""Prompts of the engines' own generate APIs: vLLM's tokens-in API and SGLang's."""

from collections.abc import Mapping, Sequence

from xxhash import xxh64_intdigest

from epp.inference.jsonbytes import utf8
from epp.inference.media import media
from epp.inference.prompt import entries, pack_tokens, string_of, text_or_tokens
from epp.inference.request import Media, MediaKind, Prompt

_SGLANG_MEDIA = (
    ("image_data", MediaKind.IMAGE),
    ("video_data", MediaKind.VIDEO),
    ("audio_data", MediaKind.AUDIO),
)
# SGLang takes URLs, paths and bare base64 in the same field. Nobody's path is longer than this, and no picture shorter.
_LONGEST_REFERENCE_CHARS = 2048


def vllm_generate(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    """Token ids. Where a medium's placeholder stands, ids that say what the medium is take its place."""
    ids = body.get("token_ids")
    if not isinstance(ids, list) or not ids:
        return ()
    packed = pack_tokens(ids)
    if packed is None:
        return ()
    features = body.get("features")
    if isinstance(features, dict):
        packed = _with_media(packed, features)
    return (Prompt((packed,)),)


def _with_media(packed: bytes, features: Mapping[str, object]) -> bytes:
    hashes, placeholders = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(hashes, dict) or not isinstance(placeholders, dict):
        return packed
    tokens = bytearray(packed)
    room = len(packed) // 4  # spans do not overlap; some that all claim the whole prompt must not cost its square
    for modality, names in hashes.items():
        ranges = placeholders.get(modality)
        if not isinstance(names, list) or not isinstance(ranges, list):
            continue
        for name, span in zip(entries(names), entries(ranges), strict=False):
            if isinstance(name, str) and isinstance(span, dict):
                room -= _overwrite(tokens, span.get("offset"), span.get("length"), name, room)
    return bytes(tokens)


def _overwrite(tokens: bytearray, offset: object, length: object, name: str, room: int) -> int:
    """At most `room` tokens; returns how many."""
    count = len(tokens) // 4
    if not isinstance(offset, int) or not isinstance(length, int) or not 0 <= offset < count:
        return 0
    length = min(max(length, 0), count - offset, room)
    one = (xxh64_intdigest(utf8(name)) & 0xFFFFFFFF).to_bytes(4, "little")
    tokens[4 * offset : 4 * (offset + length)] = one * length
    return length


def sglang_generate(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    """Text or token ids, one or a batch. Media of a single prompt stand first: where in it they belong is not said."""
    prompts = text_or_tokens(body.get("input_ids")) or text_or_tokens(body.get("text"))
    if len(prompts) == 1:
        pictures = _sglang_media(body)
        if pictures:
            return (Prompt((*pictures, *prompts[0].parts)),)
    return prompts


def _sglang_media(body: Mapping[str, object]) -> Sequence[Media]:
    found: list[Media] = []
    for key, kind in _SGLANG_MEDIA:
        value = body.get(key)
        for entry in entries(value) if isinstance(value, list) else (value,):
            reference = entry.get("url") if isinstance(entry, dict) else entry
            if isinstance(reference, str):
                medium = media(kind, reference, inline=len(reference) > _LONGEST_REFERENCE_CHARS)
                found += [medium] if medium else []
    return found


def sglang_salt(body: Mapping[str, object]) -> str | None:
    """SGLang keys its prefix cache by the extra key followed by the adapter."""
    return ((string_of(body, "extra_key") or "") + (string_of(body, "lora_path") or "")) or None
