"""A request inside an engine."""

from dataclasses import dataclass, field

from epp.sim.types import SimRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine. Without blocks it has nothing computed.

    While it decodes, `computed_tokens` and `produced_tokens` stand as they were when it began to; see `Decoders`.

    Attributes:
        cached_tokens: what the prefix cache had of the prompt; `None`: has never run.
        decoding_since: number of the step before its first one in `Decoders`; `None` while it does not decode.
    """

    request: SimRequest
    blocks: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    produced_tokens: int = 0
    published_blocks: int = 0
    cached_tokens: int | None = None
    decoding_since: int | None = None

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what has to be computed before the next token comes."""
        return self.request.prompt_tokens + self.produced_tokens

    @property
    def is_done(self) -> bool:
        return self.produced_tokens >= self.request.output_tokens
