"""The prompts that wait on each server: what they cost in tokens and in pairs of tokens that attend.

Computing a prompt takes time in proportion to its new tokens, and, for attention, to the pairs of a new token and one
before it: with u of p tokens to compute that is u · (p - u / 2). A prompt of 30,000 tokens takes twice as long as ten
of 3,000. The ledger counts tokens alone, of all processes that pick; this is what it leaves out, of our own
requests, and so as a ratio, which holds for the others, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.scheduling.data import FloatArray


def attention_pairs(uncached_tokens: FloatArray, prompt_tokens: float) -> FloatArray:
    """Pairs of a token to compute and a token of the prompt before it."""
    return uncached_tokens * (prompt_tokens - uncached_tokens / 2)


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    tokens: float = 0.0
    pairs: float = 0.0


class PrefillBacklog:
    """What was sent to each endpoint and has not led to a token. All but `pairs_per_token` is O(1)."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, _Sums] = {}
        self._by_request: dict[str, tuple[str, float, float]] = {}

    def add(self, request_id: str, endpoint_id: str, tokens: float, pairs: float) -> None:
        """It waits there; in place of where it waited before. `tokens`: 1 at least."""
        self.remove(request_id)
        self._by_request[request_id] = endpoint_id, tokens, pairs
        sums = self._by_endpoint.setdefault(endpoint_id, _Sums())
        sums.requests += 1
        sums.tokens += tokens
        sums.pairs += pairs

    def remove(self, request_id: str) -> None:
        """It no longer waits. Again, or of an unknown request, nothing happens."""
        found = self._by_request.pop(request_id, None)
        if found is None:
            return
        endpoint_id, tokens, pairs = found
        sums = self._by_endpoint[endpoint_id]
        sums.requests -= 1
        sums.tokens -= tokens
        sums.pairs -= pairs
        if not sums.requests:
            del self._by_endpoint[endpoint_id]

    def pairs_per_token(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """Of the prompts that wait at each endpoint; 0 where nothing waits."""
        by_endpoint = self._by_endpoint
        if not by_endpoint:
            return np.zeros(len(endpoint_ids))
        found = [by_endpoint.get(endpoint_id) for endpoint_id in endpoint_ids]
        return np.array([0.0 if sums is None else sums.pairs / sums.tokens for sums in found])
