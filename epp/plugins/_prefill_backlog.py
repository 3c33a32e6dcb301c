"""The prompts that wait on each server: what they cost in tokens and in pairs of tokens that attend.

Computing a prompt takes time in proportion to its new tokens, and, for attention, to the pairs of a new token and one
before it: with u of p tokens to compute that is u · (p - u / 2). A prompt of 30,000 tokens takes twice as long as ten
of 3,000. The ledger counts tokens alone, of all processes that pick; this is what it leaves out, of our own requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from epp.scheduling.data import FloatArray


def attention_pairs(uncached_tokens: FloatArray, prompt_tokens: float) -> FloatArray:
    """Pairs of a token to compute and a token of the prompt before it."""
    return uncached_tokens * (prompt_tokens - uncached_tokens / 2)


@dataclass(slots=True)
class _Waiting:
    requests: int = 0
    tokens: float = 0.0
    pairs: float = 0.0


class PrefillBacklog:
    """What was sent to each endpoint and has not led to a token. Adding and removing are O(1)."""

    def __init__(self) -> None:
        self._by_endpoint: dict[str, _Waiting] = {}
        self._by_request: dict[str, tuple[str, float, float]] = {}

    def add(self, request_id: str, endpoint_id: str, tokens: float, pairs: float) -> None:
        """`tokens`: 1 at least."""
        self.remove(request_id)
        self._by_request[request_id] = endpoint_id, tokens, pairs
        waiting = self._by_endpoint.setdefault(endpoint_id, _Waiting())
        waiting.requests += 1
        waiting.tokens += tokens
        waiting.pairs += pairs

    def remove(self, request_id: str) -> None:
        """Its first token came, or it ended. Again, or of an unknown request, nothing happens."""
        found = self._by_request.pop(request_id, None)
        if found is None:
            return
        endpoint_id, tokens, pairs = found
        waiting = self._by_endpoint[endpoint_id]
        waiting.requests -= 1
        waiting.tokens -= tokens
        waiting.pairs -= pairs
        if not waiting.requests:
            del self._by_endpoint[endpoint_id]

    def pairs_per_token(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """Of the prompts that wait at each endpoint; 0 where nothing waits."""
        pairs_per_token = np.zeros(len(endpoint_ids))
        waiting: Mapping[str, _Waiting] = self._by_endpoint
        if waiting:
            for row, endpoint_id in enumerate(endpoint_ids):
                if (here := waiting.get(endpoint_id)) is not None:
                    pairs_per_token[row] = here.pairs / here.tokens
        return pairs_per_token
