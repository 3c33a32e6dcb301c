"""First tokens that nobody sees: an answer that does not stream shows itself only when it is whole.

Until a request's first token the ledger counts its prompt as prefill that others have to wait for. Of an answer in one
piece that would be so to its end, and the picker would see queues where there are none: in simulated pools with three
such answers in ten, TTFT was predicted half as well. So its first token is taken to have come when it was predicted.
"""

import heapq

from epp.ledger import Ledger


class UnseenFirstTokens:
    """Tells the ledger of first tokens when they are due. A request that has ended by then is none of its business."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._due: list[tuple[float, str]] = []  # a heap of (when, which stream)

    def expect(self, key: str, at_s: float) -> None:
        """The first token of stream `key` is predicted for then."""
        heapq.heappush(self._due, (at_s, key))

    def catch_up(self, now_s: float) -> None:
        """Take those that were due to have come."""
        while self._due and self._due[0][0] <= now_s:
            self._ledger.first_token(heapq.heappop(self._due)[1])
