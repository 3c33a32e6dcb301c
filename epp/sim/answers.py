"""What a request asks of a simulated server, and an answer in the making: the parts that all APIs share.

An API is a function from a JSON body to a `Job`, and a kind of `Answer` that turns tokens into the API's JSON or event
stream. The shapes are vLLM's, as captured from a real server.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import orjson

Json = dict[str, Any]


class Refusal(Exception):
    """An error answer. Its text may name a parameter, never the value of a prompt."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class BadRequest(Refusal):
    """The body is not what the API takes."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, "BadRequestError", message, param)


@dataclass(frozen=True, slots=True)
class Job:
    """A parsed request.

    Attributes:
        prompts: rendered to bytes; one choice of the answer for each.
        max_output_tokens: `None` when the client left it to the server.
        include_usage, continuous_usage: of `stream_options`.
        base64: embeddings are wanted as base64 of little-endian floats.
    """

    model: str | None
    prompts: tuple[bytes, ...]
    max_output_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    cache_salt: str = ""
    base64: bool = False


@dataclass(slots=True)
class Answer(ABC):
    """One answer. The server calls `opening`, then for each token `token`, then `closing`; or all tokens, then `whole`.

    Attributes:
        id: without the API's prefix.
        created_s: Unix time.
        show_cached: report cached prompt tokens in the usage (vLLM: `--enable-prompt-tokens-details`).
        texts: output tokens so far, per choice.
    """

    job: Job
    id: str
    created_s: int
    model: str
    prompt_tokens: int
    show_cached: bool
    cached_tokens: int = 0
    texts: list[list[str]] = field(default_factory=list)

    @property
    def completion_tokens(self) -> int:
        return sum(len(text) for text in self.texts)

    @property
    def finish_reason(self) -> str:
        return "stop" if self.job.max_output_tokens is None else "length"

    def text(self, choice: int) -> str:
        return "".join(self.texts[choice])

    def opening(self) -> bytes:
        """What is sent with the headers, before there is any token."""
        return b""

    @abstractmethod
    def token(self, choice: int, last: bool) -> bytes:
        """The events for the newest token of `texts[choice]`; `last` of this choice."""

    @abstractmethod
    def closing(self) -> bytes:
        """The end of the stream."""

    @abstractmethod
    def whole(self) -> Json:
        """The answer at once."""


def event(data: Json, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def positive_int(body: Json, *names: str) -> int | None:
    """The first of these parameters that is given."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(f"{name} must be at least 1", name)
        return value
    return None


def render_messages(messages: object, param: str) -> bytes:
    """Messages as a chat template would lay them out: role, then text; other content by its JSON."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"{param} must be a list with at least one message", param)
    lines = []
    for message in messages:
        if not isinstance(message, dict):
            raise BadRequest(f"each of {param} must be an object", param)
        role = message.get("role", message.get("type", ""))
        lines.append(f"<|{role}|>".encode() + render_content(message.get("content", message.get("output"))))
        if calls := message.get("tool_calls"):
            lines.append(orjson.dumps(calls))
    return b"\n".join([*lines, b"<|assistant|>"])


def render_content(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        return b"\n".join(
            part["text"].encode()
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else orjson.dumps(part)
            for part in content
        )
    return orjson.dumps(content)


def stream_options(body: Json) -> Json:
    """`include_usage` and `continuous_usage`, for a `Job`."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", "stream_options")
    include = bool(options.get("include_usage"))
    return {"include_usage": include, "continuous_usage": include and bool(options.get("continuous_usage_stats"))}
