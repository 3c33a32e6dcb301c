"""What producers add to a request's view of the pool, and the keys under which consumers find it.

A kind of data is a type; an instance of it is keyed by the producer that made it, so that two producers of one kind
(say, one prefix index for GPU memory and one for CPU memory) can stand side by side. All arrays are in the order of the
snapshot, whatever candidates are left: a narrower view reads `array[candidates.rows]`. NaN means not known.

Nobody changes a value once it is published. It is not frozen all the same: a request makes a dozen of them, and each
field of a frozen dataclass takes five times as long to set.
"""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from epp.pool.snapshot import FloatArray as FloatArray

T = TypeVar("T")
IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DataKind(Generic[T]):
    """A kind of data, by the name the configuration's ecosystem knows it, and who makes it when nobody is named."""

    name: str
    type: type[T]
    default_producer: str

    def by(self, producer: str | None) -> "DataKey[T]":
        """The key of this kind made by the instance `producer` (`None` or empty: the default one)."""
        return DataKey(self, producer or self.default_producer)


class DataKey(str, Generic[T]):
    """Where a cycle keeps one producer's data of one kind: the text `kind/producer`.

    It is text, since a string hashes once in its life; a dozen look-ups per request by hashed fields took 8 µs. Whoever
    reads on the hot path keeps its key: making one costs more than using it.
    """

    kind: DataKind[T]
    producer: str

    def __new__(cls, kind: DataKind[T], producer: str) -> "DataKey[T]":
        key = super().__new__(cls, f"{kind.name}/{producer}")
        key.kind, key.producer = kind, producer
        return key


@dataclass(slots=True)
class TokenizedPrompt:
    """Prompts as bytes in which `bytes_per_token` bytes stand for one token.

    Attributes:
        seed: separates what must never match each other: model and cache salt.
        tokens: in all prompts together.
    """

    prompts: tuple[bytes, ...]
    seed: bytes
    bytes_per_token: int = 4
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        size = self.bytes_per_token
        self.tokens = sum([-(-len(prompt) // size) for prompt in self.prompts])


@dataclass(slots=True)
class PrefixMatch:
    """How much of the prompt each endpoint has cached.

    Attributes:
        match_blocks: per endpoint, blocks of the request found cached, contiguous from its start.
        total_blocks: blocks of the request.
        block_size_tokens: tokens in a block.
        ratio: matched share per endpoint, 0..1; all 0 when the request has no blocks.
    """

    match_blocks: FloatArray
    total_blocks: int
    block_size_tokens: int
    ratio: FloatArray = field(init=False)
    _uncached: tuple[float, FloatArray] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        self.ratio = self.match_blocks / max(self.total_blocks, 1)

    def uncached_tokens(self, prompt_tokens: float) -> FloatArray:
        """Tokens of a prompt of this length that each endpoint would have to prefill, never below 0.

        Kept for those who ask after the first, of one prompt as a rule; not to be written to.
        """
        kept = self._uncached
        if kept is None or kept[0] != prompt_tokens:
            uncached = np.maximum(prompt_tokens - self.match_blocks * self.block_size_tokens, 0.0)
            kept = (prompt_tokens, uncached)
            self._uncached = kept
        return kept[1]


class InFlightLoad(NamedTuple):
    """What we ourselves have sent to each endpoint and has not ended; see `epp.ledger.Load`."""

    requests: FloatArray
    tokens: FloatArray
    prefill_tokens: FloatArray
    decode_tokens: FloatArray


@dataclass(slots=True)
class UncachedTokens:
    """Prompt tokens of this request that each endpoint would have to prefill, and the output expected of it."""

    prefill_tokens: FloatArray
    expected_output_tokens: float


@dataclass(slots=True)
class LatencyPrediction:
    """How long this request would take on each endpoint, and whether that is within its targets.

    Whether there is a prediction, whether there is a target and whether it is met are three questions with three
    answers; none of them is read off a number.

    Attributes:
        ttft_ms: until the client gets the first of the answer: the first token of a stream, the whole of any other
            answer. NaN: no prediction.
        tpot_ms: per output token after the first. NaN: no prediction, or the answer does not stream.
        ttft_headroom_ms, tpot_headroom_ms: what is left of the target, negative when it would be missed. NaN: no
            target, or no prediction.
        known: there is a prediction for every target, and for TTFT in any case.
        ok: known, and within every target there is.
        ttft_constrained, tpot_constrained: the request has such a target.
        requests: ours that are in flight there.
    """

    ttft_ms: FloatArray
    tpot_ms: FloatArray
    ttft_headroom_ms: FloatArray
    tpot_headroom_ms: FloatArray
    known: BoolArray
    ok: BoolArray
    ttft_constrained: bool
    tpot_constrained: bool
    requests: FloatArray

    @property
    def constrained(self) -> bool:
        """The request has a target."""
        return self.ttft_constrained or self.tpot_constrained


@dataclass(slots=True)
class SlowStart:
    """Endpoints that are new or have just failed, and the one of them, if any, whose turn it is.

    Attributes:
        held_back: per endpoint, whether it should get only those requests of which it is `turn`.
        turn: the row that this request should try.
    """

    held_back: BoolArray
    turn: int | None


TOKENIZED_PROMPT = DataKind("TokenizedPrompt", TokenizedPrompt, "token-producer")
DEFAULT_PROMPT = TOKENIZED_PROMPT.by(None)
PREFIX_MATCH = DataKind("PrefixCacheMatchInfo", PrefixMatch, "approx-prefix-cache-producer")
IN_FLIGHT_LOAD = DataKind("InFlightLoad", InFlightLoad, "inflight-load-producer")
UNCACHED_TOKENS = DataKind("UncachedRequestTokens", UncachedTokens, "inflight-load-producer")
LATENCY_PREDICTION = DataKind("LatencyPredictionInfo", LatencyPrediction, "predicted-latency-producer")
SLOW_START = DataKind("SlowStart", SlowStart, "predicted-latency-producer")
