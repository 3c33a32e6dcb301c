"""What share of the prompts' tokens was cached on some server when they came, of late.

It says whether prefixes are asked for again. Where they are, a prompt that leaves its prefix on a server draws others
there. Caches begin empty, so until some tokens have come they are taken to be.
"""

_REQUESTS = 300  # so many are remembered
_TAKEN_TOKENS = 50_000.0


class Reuse:
    """Two exponentially fading sums of tokens."""

    def __init__(self) -> None:
        self._cached_tokens = self._tokens = _TAKEN_TOKENS

    def add(self, tokens: float, cached_tokens: float) -> None:
        """A prompt of `tokens`, of which the server that knows most of it had so many."""
        keep = 1.0 - 1.0 / _REQUESTS
        self._tokens = self._tokens * keep + tokens
        self._cached_tokens = self._cached_tokens * keep + min(max(cached_tokens, 0.0), tokens)

    @property
    def ratio(self) -> float:
        """From 0 to 1."""
        return self._cached_tokens / self._tokens if self._tokens > 0 else 0.0
