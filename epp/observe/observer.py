"""Joins those who want to know what happened to requests."""

from collections.abc import Callable

from epp.inference.request import Request
from epp.ledger import Outcome
from epp.observe.failures import ServerFailures
from epp.observe.metrics import Metrics
from epp.observe.records import DecisionRing
from epp.observe.trace import TraceRecorder
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial


class RequestObserver:
    """The director's observer: counts in the metrics, remembers in the ring, tells the log of servers that fail, and
    records a trace if there is to be one."""

    def __init__(
        self, metrics: Metrics, ring: DecisionRing, clock: Callable[[], float], trace: TraceRecorder | None = None
    ) -> None:
        self._metrics = metrics
        self._ring = ring
        self._failures = ServerFailures(clock)
        self._trace = trace

    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None:
        self._metrics.request_routed(request, decision, cycle, seconds)
        self._ring.request_routed(request, decision, cycle, seconds)
        if self._trace is not None:
            self._trace.request_routed(request, cycle)

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None:
        self._metrics.request_refused(request, denial, cycle, seconds)
        self._ring.request_refused(request, denial, cycle, seconds)

    def chunk_gap(self, request: Request, seconds: float) -> None:
        self._metrics.requests.chunk_gap(request, seconds)

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        self._metrics.request_ended(request, outcome)
        self._failures.request_ended(outcome)
        if self._trace is not None:
            self._trace.request_ended(request, outcome)

    def plugins_observed(self, cycle: Cycle) -> None:
        self._metrics.plugins_observed(cycle)
