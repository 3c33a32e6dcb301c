"""A prompt that nobody has cached goes where it is longest since the last such prompt went."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.plugins._prefill import prefill_row
from epp.plugins._signals import neutral
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import PREFIX_MATCH, DataKey, FloatArray
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Parameters, PreRequest, Replicated, Scorer, Services


class NoHitLruParameters(Parameters):
    prefix_plugin_type: str | None = Field(None, description="Ignored.")
    prefix_plugin_name: str | None = Field(None, description="Ignored.")
    lru_size: int = Field(1024, gt=0, description="Servers remembered.")
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")


class NoHitLruScorer(Scorer, PreRequest, Replicated):
    """If any candidate has a part of the prompt cached: 0.5 for all. Else score = 1 − i / (n − 1), with i the place of
    a candidate in the order of its last cold prompt: never first, then longest ago.

    Of three servers of which only the second ever got a cold prompt, the scores are 1, 0 and 0.5. A single candidate
    scores 1.
    """

    plugin_type = "no-hit-lru-scorer"
    parameters_model = NoHitLruParameters

    def __init__(self, name: str, parameters: NoHitLruParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)
        self._size = parameters.lru_size
        self._uses: OrderedDict[str, int] = OrderedDict()  # endpoint id to the number of its last cold prompt
        self._count = 0

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        match = cycle.get(self._key)
        is_cold = match is None or not candidates.take(match.match_blocks).any()
        cycle.state[self.name] = is_cold
        if not is_cold:
            return neutral(candidates)
        last_use = np.array([self._uses.get(endpoint.id, 0) for endpoint in candidates.endpoints])
        scores = np.ones(len(candidates))
        if len(candidates) > 1:
            scores[np.argsort(last_use, kind="stable")] = np.linspace(1.0, 0.0, len(candidates))
        return scores

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        if not cycle.state.pop(self.name, False):
            return
        used = [decision.endpoints[0].id]
        if (prefill := prefill_row(decision)) is not None:
            used.append(decision.snapshot.endpoints[prefill].id)
        for endpoint_id in used:
            self._use(endpoint_id)
            if self.tell is not None:
                self.tell(endpoint_id)

    def absorb(self, change: Any, peer: int, snapshot: Snapshot) -> None:
        self._use(change)

    def known(self) -> Sequence[Any]:
        return list(self._uses)

    def dump_state(self) -> Mapping[str, Any]:
        return {"longest_unused_first": list(self._uses)}

    def _use(self, endpoint_id: str) -> None:
        self._count += 1
        self._uses[endpoint_id] = self._count
        self._uses.move_to_end(endpoint_id)
        if len(self._uses) > self._size:
            self._uses.popitem(last=False)
