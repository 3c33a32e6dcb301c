"""A server whose label has the value of a request header is better."""

import numpy as np
from pydantic import Field

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Parameters, Scorer, Services, Stability


class HeaderLabelAffinityParameters(Parameters):
    header_name: str = Field(min_length=1, description="Request header to read.")
    label_key: str = Field(min_length=1, description="Endpoint label that is compared with it.")


class HeaderLabelAffinityScorer(Scorer):
    """score = 1 where the endpoint's label equals the request header's value, else 0; without the header 0 for all."""

    plugin_type = "header-label-affinity-scorer"
    stability = Stability.ALPHA
    parameters_model = HeaderLabelAffinityParameters

    def __init__(self, name: str, parameters: HeaderLabelAffinityParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._header = parameters.header_name.lower()
        self._label = parameters.label_key

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        wanted = cycle.request.headers.get(self._header)
        if wanted is None:
            return np.zeros(len(candidates))
        return np.array([float(e.labels.get(self._label) == wanted) for e in candidates.endpoints])
