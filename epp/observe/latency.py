"""Families about predicted latency: what was promised, what came, and how good the predictor is.

Promises and what came of them are observed by the plugins when a request has ended, in pairs: a request without a
prediction is in neither. The predictor's own figures (served errors, coverage of its bounds) are taken on a timer: see
`epp.observe.predictor`.
"""

from collections.abc import Collection, Mapping

from epp.inference.request import Request
from epp.latency.types import Target
from epp.observe import buckets
from epp.observe.cardinality import LabelSet
from epp.observe.families import Buckets, Families, Histogram, Value
from epp.observe.legacy import BY_MODEL, Twin
from epp.observe.predictor import PredictorMetrics
from epp.observe.scheduling import Observe
from epp.scheduling.cycle import Observation

BY_PLUGIN = ("plugin_name", "plugin_type", "model_name", "target_model_name")
NO_OBJECTIVE = ""


class LatencyMetrics:
    def __init__(self, families: Families, objectives: Collection[str]) -> None:
        self._objectives = objectives
        counter, gauge, histogram = families.counter, families.gauge, families.histogram

        self._last = gauge(
            "inference_request_metric",
            "Seconds of the request that ended last (a violation is 0 or 1), by what was measured.",
            (*BY_PLUGIN, "type"),
        )
        self.predicted = {
            Target.TTFT: histogram(
                "request_predicted_ttft_seconds", "Predicted, dispatch to first token.", buckets.GENERAL_S, BY_PLUGIN
            ),
            Target.TPOT: histogram(
                "request_predicted_tpot_seconds", "Predicted, per output token.", buckets.TPOT_LONG_S, BY_PLUGIN
            ),
            Target.E2E: histogram(
                "request_predicted_e2e_seconds",
                "Predicted, dispatch to end, of responses that do not stream.",
                buckets.GENERAL_S,
                BY_PLUGIN,
            ),
        }
        self.served = {
            Target.TTFT: histogram(
                "request_served_ttft_seconds",
                "Dispatch to first token, of requests with a prediction.",
                buckets.GENERAL_S,
                BY_PLUGIN,
            ),
            Target.TPOT: histogram(
                "request_served_tpot_seconds",
                "Per output token, of requests with a prediction.",
                buckets.TPOT_LONG_S,
                BY_PLUGIN,
            ),
            Target.E2E: histogram(
                "request_served_e2e_seconds",
                "Dispatch to end, of responses that do not stream and had a prediction.",
                buckets.GENERAL_S,
                BY_PLUGIN,
            ),
        }
        self.prediction_s = {
            target: histogram(
                f"request_{target.value}_prediction_duration_seconds",
                "What a prediction took, for all candidates and targets at once.",
                buckets.PREDICTION_S,
                BY_PLUGIN,
            )
            for target in (Target.TTFT, Target.TPOT)
        }
        self.violations = counter("request_slo_violation", "Targets that were missed.", (*BY_PLUGIN, "type"))
        by_objective = ("objective", "type")
        self._with_target = counter("slo_requests", "Ended requests that had a target, by objective.", by_objective)
        self._missed = counter("slo_missed", "Of these, the ones that missed it.", by_objective)
        self._fallbacks = counter("prediction_fallback", "Requests decided without a prediction.", ("reason",))
        self._dropped = counter(
            "prediction_samples_dropped", "Ended requests that nothing was learned from.", ("reason",)
        )
        self._invalid = counter("slo_header_invalid", "Targets that are no positive number, and so none.", ("header",))
        self._slow_starts = counter(
            "slow_start_requests", "Requests sent to new or recovering servers to try them.", ()
        )
        self._denied = counter("admission_denied", "Requests refused by a plugin.", ("plugin_name", "plugin_type"))

        self.predictor = PredictorMetrics(families)

    # --- at the end of a request ------------------------------------------------------------------------------------

    def observers(self) -> Mapping[str, Observe]:
        """Who counts what plugins observe, by family."""
        observers: dict[str, Observe] = {
            "request_slo_checked": self._checked,
            "request_slo_violation": self._violated,
            "prediction_fallback": lambda seen, *_: self._fallbacks[_label(seen, "reason"),].inc(),
            "prediction_samples_dropped": lambda seen, *_: self._dropped[_label(seen, "reason"),].inc(),
            "slo_header_invalid": lambda seen, *_: self._invalid[_label(seen, "header"),].inc(),
            "slow_start_requests": lambda seen, *_: self._slow_starts[()].inc(),
            "admission_denied": lambda seen, *_: self._denied[seen.plugin_name, seen.plugin_type].inc(),
        }
        for target in Target:
            name = target.value
            observers[f"request_predicted_{name}_seconds"] = self._measure(self.predicted[target], f"predicted_{name}")
            observers[f"request_served_{name}_seconds"] = self._measure(self.served[target], name)
        for target, family in self.prediction_s.items():
            last = f"{target.value}_prediction_duration"
            observers[f"request_{last}_seconds"] = self._measure(family, last)
        return observers

    def _measure(self, family: Histogram, last: str) -> Observe:
        """Observes a time in `family`, and as the last one of its type."""
        series: dict[tuple[str, ...], tuple[Buckets, Value]] = {}  # as many as the family has

        def observe(seen: Observation, request: Request, labels: LabelSet) -> None:
            by_plugin = _by_plugin(seen, labels)
            both = series.get(by_plugin)
            if both is None:
                both = series[by_plugin] = family[by_plugin], self._last[*by_plugin, last]
            both[0].observe(seen.value)
            both[1].set(seen.value)

        return observe

    def _checked(self, seen: Observation, request: Request, labels: LabelSet) -> None:
        kind = _label(seen, "type")
        self._with_target[self._objective(request), kind].inc()
        self._last[*_by_plugin(seen, labels), f"{kind}_slo_violation"].set(0)

    def _violated(self, seen: Observation, request: Request, labels: LabelSet) -> None:
        kind, by_plugin = _label(seen, "type"), _by_plugin(seen, labels)
        self.violations[*by_plugin, kind].inc()
        self._missed[self._objective(request), kind].inc()
        self._last[*by_plugin, f"{kind}_slo_violation"].set(1)

    def _objective(self, request: Request) -> str:
        """Objectives that are not configured are the client's words, and not told apart."""
        name = request.objective
        return name if name is not None and name in self._objectives else NO_OBJECTIVE

    def twins(self) -> list[Twin]:
        """The older names, over all plugins."""
        twins = [
            Twin(self._last, "inference_objective_inference_request_metric", BY_MODEL | {"type": "type"}),
            Twin(self.violations, "inference_objective_request_slo_violation", BY_MODEL | {"type": "type"}),
        ]
        for target in (Target.TTFT, Target.TPOT):
            name = f"inference_objective_request_{{}}{target.value}_{{}}seconds"
            twins += [
                Twin(self.served[target], name.format("", ""), BY_MODEL),
                Twin(self.predicted[target], name.format("predicted_", ""), BY_MODEL),
                Twin(self.prediction_s[target], name.format("", "prediction_duration_"), BY_MODEL),
            ]
        return twins


def _label(seen: Observation, name: str) -> str:
    return dict(seen.labels)[name]


def _by_plugin(seen: Observation, labels: LabelSet) -> LabelSet:
    return seen.plugin_name, seen.plugin_type, labels[0], labels[1]
