"""Keeps the servers that are below fixed limits."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from epp.plugins._signals import fresh
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import IN_FLIGHT_LOAD, DataKey, FloatArray
from epp.scheduling.plugin import Filter, Parameters, Services, Stability


class Condition(Parameters):
    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float = Field(description="Highest value that is kept.")


class UtilizationFilterParameters(Parameters):
    conditions: list[Condition] = Field(min_length=1, description="All of them must hold.")
    fallback_on_empty: bool = Field(False, description="Keep all servers when none is below the limits.")
    in_flight_load_producer_name: str = Field("", description="Whose counts to read; empty: the default producer.")


class UtilizationFilter(Filter):
    """Keeps a server when each of its metrics is at or below its limit.

    A server whose metric is unknown or stale is dropped, unless that metric is unknown of every candidate: then the
    condition says nothing and is skipped.
    """

    plugin_type = "utilization-filter"
    stability = Stability.ALPHA
    parameters_model = UtilizationFilterParameters

    def __init__(self, name: str, parameters: UtilizationFilterParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._conditions = parameters.conditions
        self._fallback_on_empty = parameters.fallback_on_empty
        self._load_key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        needs_load = any(condition.metric == "active-requests" for condition in self._conditions)
        return (self._load_key,) if needs_load else ()

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        kept = np.ones(len(candidates), dtype=np.bool_)
        for condition in self._conditions:
            values = self._values(condition.metric, cycle, candidates)
            if not np.isnan(values).all():
                kept &= values <= condition.max_value
        return candidates if self._fallback_on_empty and not kept.any() else candidates.where(kept)

    def drop_reason(self) -> str:
        return "above a limit or unknown"

    def _values(self, metric: str, cycle: Cycle, candidates: Candidates) -> FloatArray:
        snapshot = candidates.snapshot
        if metric == "active-requests":
            load = cycle.get(self._load_key)
            return np.full(len(candidates), np.nan) if load is None else candidates.take(load.requests)
        columns = {
            "running-requests": snapshot.running_requests,
            "waiting-queue": snapshot.waiting_requests,
            "kv-cache-utilization": snapshot.kv_cache_usage_ratio,
        }
        return fresh(columns[metric], candidates, cycle.now_s)
