"""Families about predicted latency: what was promised, what came, and how good the predictor is.

Promises and what came of them are observed by the plugins when a request has ended, in pairs: a request without a
prediction is in neither. The predictor's own figures (served errors, coverage of its bounds) are taken on a timer: see
`epp.observe.predictor`.
"""

from collections.abc import Collection

from epp.inference.request import Request
from epp.latency.types import Target
from epp.observe import buckets
from epp.observe.cardinality import RequestLabels
from epp.observe.families import Families
from epp.observe.legacy import BY_MODEL, Twin
from epp.observe.predictor import PredictorMetrics
from epp.scheduling.cycle import Observation

BY_PLUGIN = ("plugin_name", "plugin_type", "model_name", "target_model_name")
NO_OBJECTIVE = ""


class LatencyMetrics:
    def __init__(self, families: Families, labels: RequestLabels, objectives: Collection[str]) -> None:
        self._labels = labels
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

    def observe(self, seen: Observation, request: Request) -> bool:
        """Count what a plugin observed. False: it is none of these families."""
        labels = dict(seen.labels)
        by_plugin = (seen.plugin_name, seen.plugin_type, *self._labels.of(request)[:2])
        match seen.family.removeprefix("request_").removesuffix("_seconds").split("_"):
            case ["predicted", target]:
                self.predicted[Target(target)][by_plugin].observe(seen.value)
                self._last[*by_plugin, f"predicted_{target}"].set(seen.value)
            case ["served", target]:
                self.served[Target(target)][by_plugin].observe(seen.value)
                self._last[*by_plugin, target].set(seen.value)
            case [target, "prediction", "duration"]:
                self.prediction_s[Target(target)][by_plugin].observe(seen.value)
                self._last[*by_plugin, f"{target}_prediction_duration"].set(seen.value)
            case ["slo", "checked"]:
                self._with_target[self._objective(request), labels["type"]].inc()
                self._last[*by_plugin, f"{labels['type']}_slo_violation"].set(0)
            case ["slo", "violation"]:
                self.violations[*by_plugin, labels["type"]].inc()
                self._missed[self._objective(request), labels["type"]].inc()
                self._last[*by_plugin, f"{labels['type']}_slo_violation"].set(1)
            case ["prediction", "fallback"]:
                self._fallbacks[labels["reason"],].inc()
            case ["prediction", "samples", "dropped"]:
                self._dropped[labels["reason"],].inc()
            case ["slo", "header", "invalid"]:
                self._invalid[labels["header"],].inc()
            case ["slow", "start", "requests"]:
                self._slow_starts[()].inc()
            case ["admission", "denied"]:
                self._denied[seen.plugin_name, seen.plugin_type].inc()
            case _:
                return False
        return True

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
