"""The oracle: it looks into the engines and knows how long answers will be. A bound, not a policy.

It knows what no picker can: the true state of every engine, the true step law, and the output lengths of all requests
that have arrived; nothing of those that will. Of the servers that would keep the request's targets it takes the one
with the soonest first token; if none would, the one that misses by least.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from epp.lab.experiment import LabRequest
from epp.lab.policies.policy import Policy, picked_by
from epp.lab.projection import project
from epp.lab.prompts import BlockHashes, tokens_of
from epp.lab.servers import Server
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Picker, Services
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER


@dataclass(frozen=True, slots=True)
class Foresight(Services):
    """What a picker may hold on to, and the whole world besides."""

    world: Any = None

    @property
    def arriving(self) -> LabRequest:
        request: LabRequest = self.world.arriving
        return request

    @property
    def block_hashes(self) -> BlockHashes:
        hashes: BlockHashes = self.world.block_hashes
        return hashes

    def server(self, name: str) -> Server:
        server: Server = self.world.servers[name]
        return server


def with_foresight(services: Services, world: Any) -> Services:
    return Foresight(services.ledger, services.predictor, services.timer, world)


class OraclePicker(Picker):
    """See the module's text."""

    plugin_type = "lab-oracle"

    def __init__(self, name: str, parameters: Any, services: Services) -> None:
        super().__init__(name, parameters, services)
        if not isinstance(services, Foresight):
            raise ValueError("the oracle runs in the lab only, as the policy of that name")
        self._foresight = services

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        request = self._foresight.arriving
        ttft_s = float(request.headers.get(TTFT_SLO_HEADER, "inf")) / 1e3
        tpot_s = float(request.headers.get(TPOT_SLO_HEADER, "inf")) / 1e3
        prompt_tokens = tokens_of(request.prompt)
        best: tuple[float, float, int] | None = None
        for row in candidates.rows.tolist():
            server = self._foresight.server(candidates.snapshot.endpoints[row].name)
            if not server.alive or server.failing:
                continue
            hashes = self._foresight.block_hashes.of(request.prompt, server.spec.engine.block_tokens)
            projected = project(server.engine, prompt_tokens, request.output_tokens, hashes, cycle.now_s)
            missed = max(projected.ttft_s / ttft_s - 1.0, 0.0) + max(projected.tpot_s / tpot_s - 1.0, 0.0)
            key = (missed, projected.ttft_s, row)
            best = key if best is None else min(best, key)
        return (int(candidates.rows[0]) if best is None else best[2],)


POLICY: Policy = picked_by(OraclePicker, "oracle", "a bound: knows the engines and how long answers will be")
