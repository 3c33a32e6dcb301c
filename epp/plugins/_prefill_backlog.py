"""The prompts that wait on each server: what they cost in tokens and in pairs of tokens that attend.

Computing a prompt takes time in proportion to its new tokens, and, for attention, to the pairs of a new token and one
before it: with u of p tokens to compute that is u · (p - u / 2). A prompt of 30,000 tokens takes twice as long as ten
of 3,000. The ledger counts tokens alone, of all processes that pick; this is what it leaves out, of our own
requests, and so as a ratio, which holds for the others, too.

Servers need not compute prompts in the order in which they were sent: of two that are sent at once the longer may come
first, and the other waits for it, although nothing was there when it was sent. What a law is learned from has to be
what was computed in truth, and that is known when the first token comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epp.scheduling.data import FloatArray


def attention_pairs(uncached_tokens: FloatArray, prompt_tokens: float) -> FloatArray:
    """Pairs of a token to compute and a token of the prompt before it."""
    return uncached_tokens * (prompt_tokens - uncached_tokens / 2)


class More(NamedTuple):
    """What a server computed until a request's first token, beyond its own and what waited when it was sent. Below 0
    where it went before others, or others were given up or refused."""

    tokens: float = 0.0
    pairs: float = 0.0


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    tokens: float = 0.0
    pairs: float = 0.0
    computed_tokens: float = 0.0  # since somebody waits here
    computed_pairs: float = 0.0


class _Waiting(NamedTuple):
    """A request, and what the server will have computed before it if it keeps to the order."""

    endpoint_id: str
    tokens: float
    pairs: float
    tokens_before: float
    pairs_before: float


class PrefillBacklog:
    """What was sent to each endpoint and has not led to a token. All but `pairs_per_token` is O(1)."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, _Sums] = {}
        self._by_request: dict[str, _Waiting] = {}

    def add(self, request_id: str, endpoint_id: str, tokens: float, pairs: float) -> None:
        """It waits there; in place of where it waited before. `tokens`: 1 at least."""
        self.remove(request_id)
        sums = self._by_endpoint.setdefault(endpoint_id, _Sums())
        tokens_before, pairs_before = sums.computed_tokens + sums.tokens, sums.computed_pairs + sums.pairs
        self._by_request[request_id] = _Waiting(endpoint_id, tokens, pairs, tokens_before, pairs_before)
        sums.requests += 1
        sums.tokens += tokens
        sums.pairs += pairs

    def first_token(self, request_id: str) -> More:
        """Its first token has come, so it is computed and waits no longer."""
        waiting = self._by_request.get(request_id)
        if waiting is None:
            return More()
        sums = self._by_endpoint[waiting.endpoint_id]
        more = More(sums.computed_tokens - waiting.tokens_before, sums.computed_pairs - waiting.pairs_before)
        sums.computed_tokens += waiting.tokens
        sums.computed_pairs += waiting.pairs
        self.remove(request_id)
        return more

    def remove(self, request_id: str) -> None:
        """It no longer waits. Again, or of an unknown request, nothing happens."""
        waiting = self._by_request.pop(request_id, None)
        if waiting is None:
            return
        sums = self._by_endpoint[waiting.endpoint_id]
        sums.requests -= 1
        sums.tokens -= waiting.tokens
        sums.pairs -= waiting.pairs
        if not sums.requests:
            del self._by_endpoint[waiting.endpoint_id]

    def pairs_per_token(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """Of the prompts that wait at each endpoint; 0 where nothing waits."""
        by_endpoint = self._by_endpoint
        if not by_endpoint:
            return np.zeros(len(endpoint_ids))
        found = [by_endpoint.get(endpoint_id) for endpoint_id in endpoint_ids]
        return np.array([0.0 if sums is None else sums.pairs / sums.tokens for sums in found])
