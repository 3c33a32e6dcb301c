"""What goes into a simulated engine, and what comes out of it."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class SimRequest:
    """What an engine knows of a request.

    Attributes:
        id: unique among the requests now in the engine.
        prompt_tokens, output_tokens: at least 1 each.
        block_hashes: one per *full* block of the prompt, each covering all tokens before it; may be empty. May go on
            into the answer, whose blocks can be found by others when it has ended.
        adapter: LoRA adapter; `None` for the base model.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()
    adapter: str | None = None


class Admission(Enum):
    """The answer to `submit`."""

    ACCEPTED = "accepted"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"  # it could never fit


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One output token. `index` counts from 0; `cached_tokens` is how much of the prompt the prefix cache had."""

    request_id: str
    time_s: float
    index: int
    last: bool
    cached_tokens: int


@dataclass(slots=True)
class EngineMetrics:
    """The engine's counters since its start, and its gauges now. All `*_total` only grow."""

    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float = 0.0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_queries_total: int = 0  # tokens looked up
    prefix_hits_total: int = 0  # tokens found
    preemptions_total: int = 0
    finished_total: int = 0
    aborted_total: int = 0
    rejected_total: int = 0
