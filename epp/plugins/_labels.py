"""Filters that keep or drop an endpoint by its labels alone."""

from abc import abstractmethod
from typing import Any

import numpy as np

from epp.pool.endpoint import Endpoint
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.plugin import Filter, Services


class LabelFilter(Filter):
    """Asks `keeps` once per endpoint and pool, not once per request: labels change only with the pool."""

    def __init__(self, name: str, parameters: Any, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._endpoints_version: int | None = None
        self._kept = np.zeros(0, dtype=np.bool_)

    @abstractmethod
    def keeps(self, endpoint: Endpoint) -> bool:
        """Whether requests may go to this endpoint."""

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        snapshot = candidates.snapshot
        if snapshot.endpoints_version != self._endpoints_version:
            self._kept = np.array([self.keeps(e) for e in snapshot.endpoints], dtype=np.bool_)
            self._endpoints_version = snapshot.endpoints_version
        return candidates.where(self._kept[candidates.rows])
