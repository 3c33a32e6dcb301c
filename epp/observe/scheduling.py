"""Families about decisions: how long they took, what plugins did, and what plugins want counted."""

import logging
from collections.abc import Callable, Mapping

from epp.inference.request import Request
from epp.observe import buckets
from epp.observe.cardinality import LabelSet, RequestLabels
from epp.observe.families import Families
from epp.observe.logs import OncePer
from epp.pool.snapshot import Snapshot
from epp.scheduling.cycle import Observation
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Plugin

logger = logging.getLogger(__name__)

Observe = Callable[[Observation, Request, LabelSet], None]
"""Counts what a plugin observed of a request, which has these labels."""

PLUGIN_LABELS = ("extension_point", "plugin_type", "plugin_name")
FAILURE_LOG_INTERVAL_S = 60.0


class SchedulingMetrics:
    """Also the `Recorder` that the scheduling framework reports to."""

    def __init__(self, families: Families, labels: RequestLabels, clock: Callable[[], float]) -> None:
        self._labels = labels
        self._loggable = OncePer(FAILURE_LOG_INTERVAL_S, clock)
        self._endpoints_version: int | None = None
        counter, gauge, histogram = families.counter, families.gauge, families.histogram

        self.decision_s = histogram(
            "scheduler_e2e_duration_seconds", "From a request's last needed byte to its decision.", buckets.FAST_S
        )
        self._decided_s = self.decision_s[()]
        self.attempts = counter(
            "scheduler_attempts",
            "Decisions, by the endpoint chosen.",
            ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        )
        self.plugin_s = histogram(
            "plugin_duration_seconds", "Time in one call of a plugin.", buckets.FAST_S, PLUGIN_LABELS
        )
        self._plugin_failures = counter(
            "plugin_failures", "Calls of a plugin that raised or broke a rule.", PLUGIN_LABELS
        )
        by_plugin = ("plugin_name", "plugin_type")
        self.prefix_size = gauge("prefix_indexer_size", "Entries in the prefix index.", by_plugin)
        self.prefix_hit_ratio = histogram(
            "prefix_indexer_hit_ratio",
            "Share of a prompt that the chosen endpoint had cached.",
            buckets.RATIO,
            by_plugin,
        )
        self.prefix_hit_bytes = histogram(
            "prefix_indexer_hit_bytes",
            "Bytes of a prompt that the chosen endpoint had cached.",
            buckets.HIT_BYTES,
            by_plugin,
        )

    # --- decisions --------------------------------------------------------------------------------------------------

    def decided(self, target_model: str | None, decision: Decision | None, seconds: float) -> None:
        """`decision`: `None` when no endpoint was found."""
        self._decided_s.observe(seconds)
        model = self._labels.model(target_model)
        if decision is None:
            self.attempts["failure", model, "", "", ""].inc()
        else:
            endpoint = decision.endpoints[0]
            self.attempts["success", model, endpoint.name, endpoint.namespace, str(endpoint.port)].inc()

    def forget_departed(self, snapshot: Snapshot) -> None:
        """Drop the series of endpoints that are not in the pool any more."""
        if snapshot.endpoints_version == self._endpoints_version:
            return
        self._endpoints_version = snapshot.endpoints_version
        here = {("", ""), *((endpoint.name, endpoint.namespace) for endpoint in snapshot.endpoints)}
        self.attempts.remove_where(lambda labels: labels[2:4] not in here)

    # --- plugins ----------------------------------------------------------------------------------------------------

    def durations(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        return self.plugin_s[extension_point, plugin.plugin_type, plugin.name].observe

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self._plugin_failures[extension_point, plugin.plugin_type, plugin.name].inc()
        kind = type(error).__name__
        if self._loggable((plugin.name, extension_point, kind)):
            logger.warning(
                "plugin %s (%s) failed at %s", plugin.name, plugin.plugin_type, extension_point, exc_info=error
            )

    def observers(self) -> Mapping[str, Observe]:
        """Who counts what plugins observe, by family."""
        return {
            "prefix_indexer_hit_ratio": lambda seen, *_: self.prefix_hit_ratio[_plugin_of(seen)].observe(seen.value),
            "prefix_indexer_hit_bytes": lambda seen, *_: self.prefix_hit_bytes[_plugin_of(seen)].observe(seen.value),
            "prefix_indexer_size": lambda seen, *_: self.prefix_size[_plugin_of(seen)].set(seen.value),
        }

    def not_a_metric(self, seen: Observation) -> None:
        """A plugin observes what nobody counts: a mistake in it."""
        if self._loggable((seen.plugin_name, seen.family)):
            logger.warning("plugin %s observes %s, which is no metric", seen.plugin_name, seen.family)


def _plugin_of(seen: Observation) -> tuple[str, str]:
    return seen.plugin_name, seen.plugin_type
