"""Fewer requests that we ourselves have in flight on a server is better. Never stale: it is our own count."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import IN_FLIGHT_LOAD, DataKey, FloatArray
from epp.scheduling.plugin import Parameters, Scorer, Services

_log = logging.getLogger(__name__)


class ActiveRequestParameters(Parameters):
    request_timeout: str | None = Field(None, description="Ignored. Requests are counted until they end.")
    idle_threshold: int = Field(0, description="Up to this many requests in flight a server counts as idle.")
    max_busy_score: float = Field(1.0, description="Best score of a server that is not idle, 0..1.")
    in_flight_load_producer_name: str = Field("", description="Whose counts to read; empty: the default producer.")


class ActiveRequestScorer(Scorer):
    """score = 1 if c ≤ idleThreshold, else (max − c) / max · maxBusyScore, with c the requests in flight.

    With the defaults, 0, 1 and 4 requests score 1, 0.75 and 0; if all are equally busy, all score 0. With
    idleThreshold 1 and maxBusyScore 0.5 the same servers score 1, 1 and 0, and one with 2 requests scores 0.25.
    """

    plugin_type = "active-request-scorer"
    parameters_model = ActiveRequestParameters

    def __init__(self, name: str, parameters: ActiveRequestParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._idle_threshold = max(parameters.idle_threshold, 0)
        self._max_busy_score = parameters.max_busy_score
        if not 0.0 <= self._max_busy_score <= 1.0:
            _log.warning("plugin %s: maxBusyScore %s is not in 0..1; using 1", name, self._max_busy_score)
            self._max_busy_score = 1.0
        self._key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        load = cycle.get(self._key)
        if load is None:
            return np.ones(len(candidates))
        requests = candidates.take(load.requests)
        most = requests.max(initial=0.0)
        if most <= self._idle_threshold:
            return np.ones(len(candidates))
        return np.where(requests <= self._idle_threshold, 1.0, (most - requests) / most * self._max_busy_score)
