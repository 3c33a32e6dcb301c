"""What is in flight on each endpoint: reserve when a decision is made, first token, release.

The ledger is one of the two doors that lead back from a request's end to the next decision. Its rule: reserve before
replying, release exactly once. Both ends are idempotent, keyed by our own stream id, so that however a stream dies its
counters return to where they were, and no counter is ever below zero. An endpoint that leaves the pool keeps its
entries until its last stream has ended: when it comes back under the same id, what still runs there is still counted.
"""

from dataclasses import dataclass

from epp.endings import EndCause
from epp.inference.request import Usage


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a routed request ended, as far as it is known. `None`: not known.

    Attributes:
        status: HTTP status of the model server's answer.
        streamed: the answer came as an event stream.
        served_endpoint_id: the endpoint that really answered; the first choice if Envoy does not say.
        received_s, dispatched_s, first_token_s, ended_s: monotonic seconds.
        usage: token counts by the model server's own word.
    """

    cause: EndCause
    status: int | None
    streamed: bool
    served_endpoint_id: str
    received_s: float
    dispatched_s: float
    first_token_s: float | None
    ended_s: float
    usage: Usage
    response_bytes: int = 0

    @property
    def ttft_ms(self) -> float | None:
        """Receipt to the first byte of the answer's body."""
        return None if self.first_token_s is None else (self.first_token_s - self.received_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; `None` unless streamed and with two or more tokens."""
        tokens = self.usage.completion_tokens
        if not self.streamed or self.first_token_s is None or tokens is None or tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) * 1e3 / (tokens - 1)


class Ledger:
    """See the module's text. All calls are O(1) but `load`, which is O(endpoints)."""
