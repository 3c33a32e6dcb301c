"""Building a prompt: text and media in the order in which a chat template would write them.

What is built is not the engine's exact rendering, which only the engine knows. It has two properties that matter:
equal prompts give equal parts, and prompts that share a beginning there share one here. So only what a template can
see goes in, text without separators, tools and tool calls as JSON in the client's order of keys.

Text costs next to nothing per byte, but every entry of a list costs a step of Python. A body may hold millions of them
and must not hold up everybody else, so beyond `MAX_ENTRIES` a prompt, or a batch of prompts, is read no further. What
was read is still a beginning that others may share.
"""

import struct
from collections.abc import Mapping, Sequence

from xxhash import xxh64_hexdigest

from epp.inference.jsonbytes import dumps, utf8
from epp.inference.media import media_in
from epp.inference.request import Media, Prompt

MAX_ENTRIES = 10_000  # messages of a conversation, blocks in all of its messages, prompts of a batch

_TEXT_KEYS = ("text", "thinking", "refusal")
_TEXT_TYPES = ("text", "input_text", "output_text", "summary_text", "thinking", "refusal")


class PromptBuilder:
    """Collects the parts of one prompt. Whatever has an unexpected shape is skipped or hashed, never an error."""

    __slots__ = ("_blocks_left", "_parts", "_run", "_strings")

    def __init__(self) -> None:
        self._parts: list[bytes | Media] = []
        self._run: list[bytes] = []  # since the last medium
        self._strings: list[str] = []  # since the last of that: joined first and encoded together, once
        self._blocks_left = MAX_ENTRIES

    def text(self, value: object) -> None:
        """Add a string; anything else is nothing."""
        if isinstance(value, str) and value:
            self._strings.append(value)

    def json(self, value: object) -> None:
        """Add a list or object as JSON; an empty or missing one is nothing."""
        if value:
            self._end_strings()
            self._run.append(dumps(value))

    def digest(self, value: object) -> None:
        """Add something not understood: a short hash tells it from others without counting its size as tokens."""
        self._strings.append(xxh64_hexdigest(dumps(value)))

    def media(self, medium: Media) -> None:
        self._end_run()
        self._parts.append(medium)

    def _end_strings(self) -> None:
        if self._strings:
            self._run.append(utf8("".join(self._strings)))
            self._strings.clear()

    def _end_run(self) -> None:
        self._end_strings()
        if self._run:
            self._parts.append(self._run[0] if len(self._run) == 1 else b"".join(self._run))
            self._run.clear()

    def content(self, value: object, *, nested: bool = False) -> None:
        """Add a message's content: a string, one block, or a list of blocks. Blocks nest one level (tool results)."""
        if isinstance(value, str):
            self.text(value)
        elif isinstance(value, list):
            for block in value[: self._blocks_left]:
                self._block(block, nested)
        else:
            self._block(value, nested)

    def _block(self, block: object, nested: bool) -> None:
        if block is None or self._blocks_left <= 0:
            return
        self._blocks_left -= 1
        if isinstance(block, str):
            self.text(block)
            return
        if not isinstance(block, dict):
            self.digest(block)
            return
        for key in _TEXT_KEYS:
            text = block.get(key)
            if isinstance(text, str) and text:
                self.text(text)
                return
        medium = media_in(block)
        if medium is not None:
            self.media(medium)
            return
        source = block.get("source")
        if block.get("type") == "tool_use":
            self.text(block.get("id"))
            self.text(block.get("name"))
            self.json(block.get("input"))
        elif block.get("content") is not None and not nested:
            self.content(block["content"], nested=True)
        elif isinstance(source, dict) and source.get("type") == "text":  # a plain-text document
            self.text(source.get("data"))
        elif block.get("type") not in _TEXT_TYPES:
            self.digest(block)

    def build(self) -> tuple[Prompt, ...]:
        """The prompt alone in a tuple; an empty tuple if nothing was added."""
        self._end_run()
        return (Prompt(tuple(self._parts)),) if self._parts else ()


def entries(value: object) -> Sequence[object]:
    """A list as far as it is read; nothing if it is no list."""
    return value[:MAX_ENTRIES] if isinstance(value, list) else ()


def text_or_tokens(value: object) -> tuple[Prompt, ...]:
    """Prompts from a string, a list of strings, token ids, or a list of any of these; what is neither is skipped."""
    if isinstance(value, str):
        return (Prompt((utf8(value),)),) if value else ()
    if not isinstance(value, list) or not value:
        return ()
    if isinstance(value[0], int):
        return token_prompt(value)
    prompts: list[Prompt] = []
    for entry in entries(value):
        if isinstance(entry, str):
            prompts += text_or_tokens(entry)
        elif isinstance(entry, list):
            prompts += token_prompt(entry)
    return tuple(prompts)


def token_prompt(ids: object) -> tuple[Prompt, ...]:
    """A prompt of token ids; an empty tuple unless every one is a whole number that fits uint32."""
    packed = pack_tokens(ids) if isinstance(ids, list) else None
    return (Prompt((packed,)),) if packed else ()


def pack_tokens(ids: Sequence[object]) -> bytes | None:
    """Token ids as little-endian uint32; `None` if one is no such number."""
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:
        return None


def string_of(body: Mapping[str, object], key: str) -> str | None:
    """A non-empty string field, made encodable as UTF-8 if the client put lone surrogates into it."""
    value = body.get(key)
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
