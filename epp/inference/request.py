"""The parsed request: everything that scheduling may know of what a client asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Api(StrEnum):
    """The API a request speaks, decided by its path. Text: an `Enum` is hashed in Python, and slowly."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"
    CONVERSATIONS = "conversations"
    EMBEDDINGS = "embeddings"
    IMAGES = "images"
    MESSAGES = "messages"  # Anthropic
    COUNT_TOKENS = "count_tokens"  # Anthropic
    VLLM_GENERATE = "vllm_generate"
    SGLANG_GENERATE = "sglang_generate"
    OPAQUE = "opaque"  # anything else: routed, never refused


_APIS_WITH_MODEL = frozenset(
    (Api.COMPLETIONS, Api.CHAT, Api.RESPONSES, Api.EMBEDDINGS, Api.IMAGES, Api.MESSAGES, Api.COUNT_TOKENS)
)


class ErrorStyle(Enum):
    """The JSON shape in which an API's clients expect errors."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class MediaKind(Enum):
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Media:
    """A picture, film or sound inside a prompt: known by its hash, counted in tokens by an estimate.

    Attributes:
        content_hash: xxh64 of its URL or data.
        width, height: pixels, when the data itself says so.
    """

    kind: MediaKind
    content_hash: int
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request, in the order in which the engine's template renders it.

    Attributes:
        parts: text as UTF-8 bytes and media, in order. Sampling parameters, user ids and the like are not in it.
            Token ids appear as little-endian uint32, so 4 bytes are one token there, as they are by estimate in text.
    """

    parts: tuple[bytes | Media, ...]


class Request(NamedTuple):
    """A request parsed once. `None` means absent. A tuple, as it has many fields and there is one for every request: a
    frozen dataclass took 3 µs to make, a tuple takes 0.8.

    Attributes:
        id: our own id of the stream, never the client's.
        headers: lower-cased name to the last value; `:path` and friends included. Bounded by the wire.
        model: as the client named it; `None` when the API or body has none.
        target_model: what the model server is asked for, after a rewrite. Equals `model` without one.
        streaming: the body asked for a stream. Whether the answer really streams is known with its headers.
        max_output_tokens: the client's own cap.
        cache_salt: separates tenants in the server's prefix cache, so it separates them in ours.
        prompts: usually one; empty when the body is opaque.
        body_bytes: size on the wire.
        priority: from the objective; higher is more important; below 0 may be shed.
        fairness_id: flow of the request.
        rewritten_by: the name of what changed `target_model`; empty: nothing, or a header.
        generates: the request does inference work (it has a body to run); a bodyless GET does not and is neither
            reserved in the ledger nor recorded in the prefix index.
    """

    id: str
    api: Api = Api.OPAQUE
    path: str = "/"
    headers: Mapping[str, str] = MappingProxyType({})
    model: str | None = None
    target_model: str | None = None
    streaming: bool = False
    max_output_tokens: int | None = None
    cache_salt: str | None = None
    prompts: Sequence[Prompt] = ()
    body_bytes: int = 0
    priority: int = 0
    fairness_id: str = "default-flow"
    objective: str | None = None
    generates: bool = True
    error_style: ErrorStyle = ErrorStyle.OPENAI
    rewritten_by: str = ""

    @property
    def has_model(self) -> bool:
        """Whether it names a model, or could: APIs of one engine's own know none."""
        return self.model is not None or (self.generates and self.api in _APIS_WITH_MODEL)


class Usage(NamedTuple):
    """Token counts by the model server's own word. `None`: not said."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
