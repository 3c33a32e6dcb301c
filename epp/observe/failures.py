"""What servers fail at, told in the log: once a minute for each server and cause, however many requests it concerns."""

import logging
from collections.abc import Callable

from epp.endings import EndCause
from epp.ledger import Outcome
from epp.observe.logs import OncePer

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0


class ServerFailures:
    """Looks at how requests end and names a server that fails, and what at. Counting is the metrics' business."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._loggable = OncePer(INTERVAL_S, clock)

    def request_ended(self, outcome: Outcome) -> None:
        failure = _failure(outcome)
        if failure is not None and self._loggable((outcome.served_endpoint_id, failure)):
            logger.warning("a request that was sent to %s failed: %s", outcome.served_endpoint_id, failure)


def _failure(outcome: Outcome) -> str | None:
    if outcome.cause is EndCause.UPSTREAM_ERROR:
        return f"no answer of the server came through; the proxy answered {outcome.status}"
    if outcome.cause is EndCause.NATURAL and outcome.status is not None and outcome.status >= 500:
        return f"the server answered {outcome.status}"
    return None
