"""What the lab puts in the place of the picker's observers: it counts what fails, and notes what is promised."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan

from epp.inference.request import Request
from epp.lab.experiment import Promised
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.types import Estimate, Prediction, Situation, Target
from epp.ledger import Outcome
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.plugin import Plugin


class Witness(Predictor):
    """The predictor, and the bounds that it would have given of its last prediction."""

    def __init__(self, options: PredictorOptions, quantiles: Sequence[float]) -> None:
        super().__init__(options)
        self._quantiles = tuple(quantiles)
        self._last: Prediction | None = None
        self._bounded: dict[float, Prediction] = {}

    def predict(self, situation: Situation, *, quantile: float | None = None, e2e: bool = False) -> Prediction:
        self._bounded = {q: super(Witness, self).predict(situation, quantile=q, e2e=e2e) for q in self._quantiles}
        if quantile is None and self._bounded:  # the bounds left out, it is what would be predicted without them
            self._last = _without_bounds(next(iter(self._bounded.values())))
        else:
            self._last = super().predict(situation, quantile=quantile, e2e=e2e)
        return self._last

    def take(self, endpoint_id: str) -> dict[Target, Promised]:
        """What was last promised of this endpoint, once."""
        last, self._last = self._last, None
        if last is None or endpoint_id not in last.endpoint_ids:
            return {}
        row = last.endpoint_ids.index(endpoint_id)
        bounds = [(q, _estimates(prediction)) for q, prediction in self._bounded.items()]
        promised = {}
        for target, said in _estimates(last).items():
            mean_ms = float(said.mean_ms[row])
            if not isnan(mean_ms):
                bounds_ms = {q: float(estimates[target].bound_ms[row]) for q, estimates in bounds}
                promised[target] = Promised(mean_ms, bounds_ms, said.source)
        return promised


def _estimates(prediction: Prediction) -> dict[Target, Estimate]:
    """Those that there are."""
    estimates = {Target.TTFT: prediction.ttft, Target.TPOT: prediction.tpot}
    return estimates if prediction.e2e is None else estimates | {Target.E2E: prediction.e2e}


def _without_bounds(prediction: Prediction) -> Prediction:
    def mean(of: Estimate) -> Estimate:
        return Estimate(of.mean_ms, of.mean_ms, of.base_ms, of.spread, of.source)

    e2e = None if prediction.e2e is None else mean(prediction.e2e)
    return replace(prediction, ttft=mean(prediction.ttft), tpot=mean(prediction.tpot), e2e=e2e, quantile=None)


class Failures:
    """Counts plugins that raise."""

    def __init__(self) -> None:
        self.by_type: dict[str, int] = {}

    def durations(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        return lambda seconds: None

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.by_type[plugin.plugin_type] = self.by_type.get(plugin.plugin_type, 0) + 1


class NoObserver:
    """Nobody scrapes the lab's picker."""

    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None:
        pass

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None:
        pass

    def chunk_gap(self, request: Request, seconds: float) -> None:
        pass

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        pass

    def plugins_observed(self, cycle: Cycle) -> None:
        cycle.observations.clear()
