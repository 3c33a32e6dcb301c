"""First tokens that nobody sees: an answer that does not stream shows itself only when it is whole.

Until a request's first token its prompt counts as prefill that others have to wait for. Of an answer in one piece that
would be so to its end, and the picker would see queues where there are none: in simulated pools with three such answers
in ten, TTFT was predicted half as well. So its first token is taken to have come when it was expected.
"""

import heapq
from collections.abc import Callable


class UnseenFirstTokens:
    """Tells of first tokens when they are due.

    Args:
        tell: is called with a request's id and when its first token was due, once for each. The request may have ended.
    """

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        self._tell = tell
        self._due: list[tuple[float, str]] = []  # a heap

    def expect(self, request_id: str, at_s: float) -> None:
        heapq.heappush(self._due, (at_s, request_id))

    def catch_up(self, now_s: float) -> None:
        """Take those that were due to have come."""
        while self._due and self._due[0][0] <= now_s:
            at_s, request_id = heapq.heappop(self._due)
            self._tell(request_id, at_s)
