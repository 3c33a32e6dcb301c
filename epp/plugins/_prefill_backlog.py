"""The prompts that wait on each server: what they cost in tokens and in pairs of tokens that attend.

Computing a prompt takes time in proportion to its new tokens, and, for attention, to the pairs of a new token and one
before it: with u of p tokens to compute that is u · (p - u / 2). A prompt of 30,000 tokens takes twice as long as ten
of 3,000. The ledger counts tokens alone, of all processes that pick; this is what it leaves out, of our own requests.
"""

from collections.abc import Sequence

from epp.plugins._ratio_in_flight import RatioInFlight
from epp.scheduling.data import FloatArray


def attention_pairs(uncached_tokens: FloatArray, prompt_tokens: float) -> FloatArray:
    """Pairs of a token to compute and a token of the prompt before it."""
    return uncached_tokens * (prompt_tokens - uncached_tokens / 2)


class PrefillBacklog(RatioInFlight):
    """What was sent to each endpoint and has not led to a token: pairs per token."""

    def add(self, request_id: str, endpoint_id: str, tokens: float, pairs: float) -> None:
        """`tokens`: 1 at least."""
        self._put(request_id, endpoint_id, pairs, tokens)

    def pairs_per_token(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """Of the prompts that wait at each endpoint; 0 where nothing waits."""
        return self._ratios(endpoint_ids, nothing_there=0.0)
