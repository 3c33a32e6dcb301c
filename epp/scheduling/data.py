"""What producers add to a request's view of the pool, and the keys under which consumers find it.

A kind of data is a type; an instance of it is keyed by the producer that made it, so that two producers of one kind
(say, one prefix index for GPU memory and one for CPU memory) can stand side by side. All arrays are in the order of the
snapshot, whatever candidates are left: a narrower view reads `array[candidates.rows]`. NaN means not known.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class DataKind(Generic[T]):
    """A kind of data, by the name the configuration's ecosystem knows it, and who makes it when nobody is named."""

    name: str
    type: type[T]
    default_producer: str

    def by(self, producer: str | None) -> "DataKey[T]":
        """The key of this kind made by the instance `producer` (`None` or empty: the default one)."""
        return DataKey(self, producer or self.default_producer)


@dataclass(frozen=True, slots=True)
class DataKey(Generic[T]):
    kind: DataKind[T]
    producer: str

    def __str__(self) -> str:
        return f"{self.kind.name}/{self.producer}"


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Prompts as bytes in which `bytes_per_token` bytes stand for one token.

    `seed` separates what must never match each other: model and cache salt.
    """

    prompts: tuple[bytes, ...]
    seed: bytes
    bytes_per_token: int = 4

    @property
    def tokens(self) -> int:
        return sum(-(-len(p) // self.bytes_per_token) for p in self.prompts)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How much of the prompt each endpoint has cached.

    Attributes:
        match_blocks: per endpoint, blocks of the request found cached, contiguous from its start.
        total_blocks: blocks of the request.
        block_size_tokens: tokens in a block.
    """

    match_blocks: FloatArray
    total_blocks: int
    block_size_tokens: int

    @property
    def ratio(self) -> FloatArray:
        """Matched share per endpoint, 0..1; all 0 when the request has no blocks."""
        if self.total_blocks == 0:
            return np.zeros_like(self.match_blocks)
        return self.match_blocks / self.total_blocks


@dataclass(frozen=True, slots=True)
class InFlightLoad:
    """What we ourselves have sent to each endpoint and has not ended."""

    requests: FloatArray
    tokens: FloatArray


@dataclass(frozen=True, slots=True)
class UncachedTokens:
    """Prompt tokens of this request that each endpoint would have to prefill, and the output expected of it."""

    prefill_tokens: FloatArray
    expected_output_tokens: float


TOKENIZED_PROMPT = DataKind("TokenizedPrompt", TokenizedPrompt, "token-producer")
PREFIX_MATCH = DataKind("PrefixCacheMatchInfo", PrefixMatch, "approx-prefix-cache-producer")
IN_FLIGHT_LOAD = DataKind("InFlightLoad", InFlightLoad, "inflight-load-producer")
UNCACHED_TOKENS = DataKind("UncachedRequestTokens", UncachedTokens, "inflight-load-producer")
