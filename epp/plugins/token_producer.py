"""Prompts as tokens, by estimate: four bytes of text are one token."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from epp.inference.request import Media, Prompt, Request
from epp.plugins._media_tokens import Estimate
from epp.plugins._video_hints import VideoHints, video_hints_of
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import TOKENIZED_PROMPT, DataKey, TokenizedPrompt
from epp.scheduling.plugin import Parameters, Producer, Services

BYTES_PER_TOKEN = 4
"""llm-d default. English text has about 4 characters per token; token ids take 4 bytes each, so they count exactly."""

MAX_MEDIA_TOKENS_PER_REQUEST = 262_144
"""Media beyond this counts nothing: a body full of tiny references must not grow into a prompt of any size."""

_REMOTE = ("modelName", "vllm", "udsTokenizerConfig")


class TokenProducerParameters(Parameters):
    model_name: str | None = Field(None, description="Not available in this version.")
    vllm: dict[str, Any] | None = Field(None, description="Not available in this version.")
    uds_tokenizer_config: dict[str, Any] | None = Field(None, description="Not available in this version.")
    estimate: Estimate = Field(default_factory=Estimate, description="What pictures and films count.")


class TokenProducer(Producer):
    """Publishes the prompts of a request as bytes in which 4 bytes are one token.

    Text is taken as it is, so 10 bytes are 3 tokens, the last of them short. A picture, film or sound starts on a token
    boundary and is replaced by its content hash, repeated for as many tokens as it is estimated to be: equal content
    is equal bytes. Nothing is published for a request without a readable prompt, or one that asks for no inference.
    """

    plugin_type = "token-producer"
    aliases = ("tokenizer",)
    parameters_model = TokenProducerParameters

    def __init__(self, name: str, parameters: TokenProducerParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        given = parameters.model_dump(by_alias=True, exclude_none=True)
        remote = [key for key in _REMOTE if key in given]
        if remote:
            raise ValueError(
                f"remote tokenizers are not available in this version; remove {', '.join(remote)} "
                "and tokens are counted by estimate"
            )
        self._estimate = parameters.estimate
        self._key = TOKENIZED_PROMPT.by(name)

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        request = cycle.request
        if not request.generates or not request.prompts:
            return
        media_tokens_left = MAX_MEDIA_TOKENS_PER_REQUEST
        rendered = []
        hints: VideoHints | None = None
        for prompt in request.prompts:
            parts = prompt.parts
            if len(parts) == 1 and isinstance(parts[0], bytes):
                rendered.append(parts[0])
                continue
            if hints is None:
                hints = video_hints_of(request.headers)
            data, media_tokens = self._render(prompt, hints, media_tokens_left)
            media_tokens_left -= media_tokens
            rendered.append(data)
        cycle.data[self._key] = TokenizedPrompt(tuple(rendered), seed_of(request), BYTES_PER_TOKEN)

    def _render(self, prompt: Prompt, hints: VideoHints, media_tokens_left: int) -> tuple[bytes, int]:
        """The prompt's bytes, and how many of its tokens stand for media."""
        pieces: list[bytes] = []
        length = media_tokens = 0
        for part in prompt.parts:
            if isinstance(part, Media):
                tokens = min(self._estimate.tokens(part, hints), media_tokens_left - media_tokens)
                media_tokens += tokens
                piece = bytes(-length % BYTES_PER_TOKEN) + _placeholder(part.content_hash, tokens)
            else:
                piece = part
            pieces.append(piece)
            length += len(piece)
        return b"".join(pieces), media_tokens


def seed_of(request: Request) -> bytes:
    """What keeps prompts apart that a server's cache keeps apart: model (or adapter) and cache salt."""
    model, salt = request.target_model or "", request.cache_salt or ""
    return f"{model}\0{salt}".encode("utf-8", "surrogatepass")


def _placeholder(content_hash: int, tokens: int) -> bytes:
    pattern = (content_hash & (2**64 - 1)).to_bytes(8, "little")
    return (pattern * (tokens // 2 + 1))[: tokens * BYTES_PER_TOKEN]
