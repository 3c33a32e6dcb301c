"""The steps of one request around the scheduler, in the order of time.

`process_request`, then `decide` (shed → screen → produce → admit → schedule), then, once a decision is made,
`pre_request`, and as the answer comes `response_headers`, `first_token`, `response_chunk`, `end`. Hooks of one kind run
in the order of the configuration, producers after those they read from. All lists are made once, here, so that a
request costs the calls of its plugins and little else.
"""

# mypy: disable-error-code="type-abstract"
# Roles are abstract classes, and `role(Screener)` asks for instances of one, not for a class to instantiate.

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from epp.ledger import Outcome
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.instruments import ExtensionPoint, Hook, Instruments, Recorder
from epp.scheduling.plugin import (
    Admitter,
    EndHook,
    FirstTokenHook,
    Plugin,
    PreRequest,
    Producer,
    RequestProcessor,
    ResponseChunkHook,
    ResponseHeadersHook,
    SaturationDetector,
    Screener,
)
from epp.scheduling.scheduler import Scheduler

T = TypeVar("T")

NO_CANDIDATES = "failed to find endpoint candidates for serving the request"
SCREENED_OUT = "screeners eliminated all endpoint candidates"
SHED = "system saturated, sheddable request dropped"


class ProducerCycleError(ValueError):
    """Producers that wait for one another. `names`: the instances of one circle, in order."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__("producers wait for one another: " + " → ".join([*names, names[0]]))
        self.names = tuple(names)


def in_data_order(producers: Iterable[Producer]) -> list[Producer]:
    """Each producer after those it reads from, otherwise in the order given.

    Raises:
        ProducerCycleError: there is no such order.
    """
    given = list(producers)
    maker = {key: producer for producer in given for key in producer.produces}
    ordered: list[Producer] = []
    path: list[Producer] = []

    def visit(producer: Producer) -> None:
        if producer in ordered:
            return
        if producer in path:
            raise ProducerCycleError([p.name for p in path[path.index(producer) :]])
        path.append(producer)
        for key in producer.consumes:
            if key in maker and maker[key] is not producer:
                visit(maker[key])
        path.pop()
        ordered.append(producer)

    for producer in given:
        visit(producer)
    return ordered


class Pipeline:
    """All extension points of one configuration. Stateless: what a request leaves behind is in its `Cycle`.

    Args:
        plugins: every instance, in the order of the configuration; each is called at every point it has a hook for.
        saturation_detector: says when requests of negative priority are shed; `None` sheds none.
        recorder, timer: where failures and durations go; see `Instruments`.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        scheduler: Scheduler,
        saturation_detector: SaturationDetector | None,
        recorder: Recorder | None = None,
        timer: Callable[[], float] | None = None,
    ) -> None:
        def role(kind: type[T]) -> list[T]:
            return [plugin for plugin in plugins if isinstance(plugin, kind)]

        self._instruments = Instruments(recorder, timer)
        hooks = self._instruments.hooks
        at = ExtensionPoint
        self._scheduler = scheduler
        self._detector = saturation_detector
        self._processors = hooks(at.REQUEST_HEADER, role(RequestProcessor), lambda p: p.process_request)
        self._screeners = hooks(at.SCREENER, role(Screener), lambda p: p.screen)
        self._producers = hooks(at.DATA_PRODUCER, in_data_order(role(Producer)), lambda p: p.produce)
        self._admitters = hooks(at.ADMISSION, role(Admitter), lambda p: p.admit)
        self._pre_request = hooks(at.PRE_REQUEST, role(PreRequest), lambda p: p.pre_request)
        self._response_headers = hooks(at.RESPONSE_RECEIVED, role(ResponseHeadersHook), lambda p: p.response_headers)
        self._first_token = hooks(at.FIRST_TOKEN, role(FirstTokenHook), lambda p: p.first_token)
        self._response_chunk = hooks(at.RESPONSE_STREAMING, role(ResponseChunkHook), lambda p: p.response_chunk)
        self._end = hooks(at.RESPONSE_COMPLETE, role(EndHook), lambda p: p.end)

    @property
    def observes_chunks(self) -> bool:
        """Somebody wants every chunk of the response; otherwise `response_chunk` need not be called."""
        return bool(self._response_chunk)

    # --- before the choice ----------------------------------------------------------------------------------------

    def process_request(self, cycle: Cycle) -> Denial | None:
        """Once, at receipt. The first denial wins."""
        return self._first_denial(ExtensionPoint.REQUEST_HEADER, self._processors, cycle)

    def decide(self, cycle: Cycle, candidates: Candidates) -> Decision | Denial:
        """The whole choice. Shedding comes first, so that a request that will be refused costs next to nothing."""
        if len(candidates) == 0:
            return Denial.no_endpoints(NO_CANDIDATES)
        if denial := self.shed(cycle, candidates):
            return denial
        screened = self.screen(cycle, candidates)
        if isinstance(screened, Denial):
            return screened
        self.produce(cycle, screened)
        if denial := self.admit(cycle, screened):
            return denial
        return self.schedule(cycle, screened)

    def shed(self, cycle: Cycle, candidates: Candidates) -> Denial | None:
        """Without flow control: a request of negative priority is refused while the pool is full."""
        if cycle.request.priority >= 0 or self._detector is None:
            return None
        try:
            saturation = self._detector.saturation(candidates, cycle.now_s)
        except Exception as error:
            self._instruments.failed(ExtensionPoint.ADMISSION, self._detector, cycle, error)
            return None
        return Denial.saturated(SHED) if saturation >= 1.0 else None

    def screen(self, cycle: Cycle, candidates: Candidates) -> Candidates | Denial:
        """Every screener sees all candidates; what all of them leave stays."""
        if not self._screeners:  # as a rule; and candidates there are
            return candidates
        left = candidates
        timer = self._instruments.timer
        began_s = timer()
        for plugin, call, took in self._screeners:
            try:
                left = left.intersect(call(cycle, candidates).rows)
            except Exception as error:
                self._instruments.failed(ExtensionPoint.SCREENER, plugin, cycle, error)
            ended_s = timer()
            took(ended_s - began_s)
            began_s = ended_s
        return left if len(left) else Denial.no_endpoints(SCREENED_OUT)

    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        """A producer that fails costs its own data: those that read from it see `None`."""
        self._instruments.run_all(ExtensionPoint.DATA_PRODUCER, self._producers, cycle, candidates)

    def admit(self, cycle: Cycle, candidates: Candidates) -> Denial | None:
        """The first denial wins; an admitter that fails lets the request through."""
        return self._first_denial(ExtensionPoint.ADMISSION, self._admitters, cycle, candidates)

    def _first_denial(
        self, point: ExtensionPoint, hooks: Sequence[Hook[Any, Denial | None]], cycle: Cycle, *args: Any
    ) -> Denial | None:
        if not hooks:
            return None
        timer = self._instruments.timer
        began_s = timer()
        for plugin, call, took in hooks:
            denial = None
            try:
                denial = call(cycle, *args)
            except Exception as error:
                self._instruments.failed(point, plugin, cycle, error)
            ended_s = timer()
            took(ended_s - began_s)
            began_s = ended_s
            if denial is not None:
                return denial
        return None

    def schedule(self, cycle: Cycle, candidates: Candidates) -> Decision | Denial:
        return self._scheduler.schedule(cycle, candidates)

    # --- after the choice -----------------------------------------------------------------------------------------

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        self._instruments.run_all(ExtensionPoint.PRE_REQUEST, self._pre_request, cycle, decision)

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        self._instruments.run_all(
            ExtensionPoint.RESPONSE_RECEIVED, self._response_headers, cycle, decision, status, headers, served
        )

    def first_token(self, cycle: Cycle, decision: Decision, at_s: float) -> None:
        self._instruments.run_all(ExtensionPoint.FIRST_TOKEN, self._first_token, cycle, decision, at_s)

    def response_chunk(self, cycle: Cycle, decision: Decision, data: bytes, at_s: float) -> None:
        self._instruments.run_all(ExtensionPoint.RESPONSE_STREAMING, self._response_chunk, cycle, decision, data, at_s)

    def end(self, cycle: Cycle, decision: Decision, outcome: Outcome) -> None:
        self._instruments.run_all(ExtensionPoint.RESPONSE_COMPLETE, self._end, cycle, decision, outcome)
