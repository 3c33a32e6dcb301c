"""How full the pool is, by what the servers report."""

import numpy as np
from pydantic import Field, field_validator

from epp.plugins._signals import fresh
from epp.pool.snapshot import FloatArray
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Filter, Parameters, SaturationDetector, Services
from epp.units import parse_duration_s


class UtilizationDetectorParameters(Parameters):
    queue_depth_threshold: int = Field(5, gt=0, description="Waiting requests at which a server is full.")
    kv_cache_util_threshold: float = Field(0.8, gt=0, le=1, description="KV cache usage at which a server is full.")
    metrics_staleness_threshold: str = Field("2s", description="Older signals are not believed. Above 0.")
    headroom: float = Field(0.0, ge=0, description="Filter only: how far above the thresholds is still allowed.")

    @field_validator("metrics_staleness_threshold")
    @classmethod
    def _is_a_positive_duration(cls, text: str) -> str:
        if parse_duration_s(text) <= 0:
            raise ValueError("must be above 0")
        return text


class UtilizationDetector(SaturationDetector, Filter):
    """saturation = mean over servers of max(waiting / queueDepthThreshold, KV usage / kvCacheUtilThreshold).

    With the defaults, servers with (5 waiting, 40 % KV) and (1 waiting, 80 % KV) are 1.0 each: full. It can exceed 1.

    A server whose signals are unknown or stale says nothing and is left out. If that is all of them, or there is none,
    the saturation is 0: blind, we keep serving, and an empty pool is not a full one. (llm-d takes a stale server for
    full, after 200 ms by default, and so sheds when its scraper stops.)

    As a filter it keeps the servers that are below both thresholds · (1 + headroom); unknown ones are dropped, and if
    nothing is left, all stay.
    """

    plugin_type = "utilization-detector"
    parameters_model = UtilizationDetectorParameters

    def __init__(self, name: str, parameters: UtilizationDetectorParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._queue_threshold = parameters.queue_depth_threshold
        self._kv_threshold = parameters.kv_cache_util_threshold
        self._stale_after_s = parse_duration_s(parameters.metrics_staleness_threshold)
        self._allowed = 1.0 + parameters.headroom

    def saturation(self, candidates: Candidates, now_s: float) -> float:
        utilization = self._utilization(candidates, now_s)
        known = utilization[~np.isnan(utilization)]
        return float(known.mean()) if known.size else 0.0

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        kept = candidates.where(self._utilization(candidates, cycle.now_s) < self._allowed)
        return kept if len(kept) else candidates

    def drop_reason(self) -> str:
        return "saturated or unknown"

    def _utilization(self, candidates: Candidates, now_s: float) -> FloatArray:
        """Per candidate the fuller of queue and cache; NaN where neither is known."""
        snapshot = candidates.snapshot
        queue = fresh(snapshot.waiting_requests, candidates, now_s, self._stale_after_s) / self._queue_threshold
        cache = fresh(snapshot.kv_cache_usage_ratio, candidates, now_s, self._stale_after_s) / self._kv_threshold
        return np.fmax(queue, cache)
