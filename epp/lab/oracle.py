"""The oracle: it looks into the engines and knows how long answers will be. A bound, not a policy.

It knows what no picker can: the true state of every engine and of its cache, the true step law, and the output lengths
of all requests that have arrived; nothing of those that will. What is best to do with that depends on the workload and
the load, so it has several rules, and of a run it is given the one that kept most targets. All are greedy: they are no
proof that nothing could be better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from pydantic import Field

from epp.lab.experiment import LabRequest
from epp.lab.policies.policy import Policy, picked_by
from epp.lab.projection import project
from epp.lab.prompts import BlockHashes, tokens_of
from epp.lab.servers import Server
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Parameters, Picker, Services
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER

_WINDOW_S = 1.0
"""Over which the pace of an engine is taken: long against a step, short against a wave of load."""


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


class _Pace:
    """How long an engine's steps have been of late, prompts of others included."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self._since: tuple[float, float, int] = (0.0, 0.0, 0)

    def look(self, server: Server, now_s: float) -> None:
        since_s, busy_s, steps = self._since
        if now_s - since_s >= _WINDOW_S:
            new_steps = server.engine.scheduler.decoders.steps - steps
            self.step_s = (server.engine.busy_s - busy_s) / new_steps if new_steps > 0 else 0.0
            self._since = now_s, server.engine.busy_s, server.engine.scheduler.decoders.steps


class Rule(Enum):
    """Whom to take. A request that no server can keep within its targets is lost, wherever it goes."""

    SOONEST = "soonest"  # the soonest first token of those that keep the targets; a lost one where it misses by least
    GIVE_UP_LATE = "give-up-late"  # the same, but a lost one goes to the longest queue, out of the way of the others
    GIVE_UP_SLOW = "give-up-slow"  # the same, and lost is also what would come to a server whose pace misses the target
    CACHED = "cached"  # the fewest tokens to compute, whatever the targets, then the fewest requests
    LIGHTEST = "lightest"  # the least prefill work times batch size, by what is truly cached and queued


class OracleParameters(Parameters):
    rule: str = Field(Rule.SOONEST.value, description="See `epp.lab.oracle.Rule`.")


class _Choice(NamedTuple):
    """What is compared, first things first; less is better."""

    lost: bool
    first: float
    second: float
    row: int


class OraclePicker(Picker):
    """See the module's text."""

    plugin_type = "lab-oracle"
    parameters_model = OracleParameters

    def __init__(self, name: str, parameters: OracleParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._rule = Rule(parameters.rule)
        if not isinstance(services, Foresight):
            raise ValueError("the oracle runs in the lab only, as the policy of that name")
        self._foresight = services
        self._pace: dict[str, _Pace] = {}

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        choices = [
            self._choice(row, server, cycle.now_s)
            for row in candidates.rows.tolist()
            if (server := self._foresight.server(candidates.snapshot.endpoints[row].name)).alive and not server.failing
        ]
        return (min(choices).row if choices else int(candidates.rows[0]),)

    def _choice(self, row: int, server: Server, now_s: float) -> _Choice:
        request, engine = self._foresight.arriving, server.engine
        ttft_limit_s = float(request.headers.get(TTFT_SLO_HEADER, "inf")) / 1e3
        tpot_limit_s = float(request.headers.get(TPOT_SLO_HEADER, "inf")) / 1e3
        pace = self._pace.setdefault(server.spec.name, _Pace())
        pace.look(server, now_s)
        prompt_tokens = tokens_of(request.prompt)
        hashes = self._foresight.block_hashes.of(request.prompt, engine.config.block_tokens)
        projected = project(engine, prompt_tokens, request.output_tokens, hashes, now_s)
        sequences = float(sum(engine.gauges()[:2]))
        if self._rule is Rule.LIGHTEST:
            return _Choice(False, projected.queued_tokens * (sequences + 1), projected.ttft_s, row)
        if self._rule is Rule.CACHED:
            return _Choice(False, float(projected.uncached_tokens), sequences, row)
        tpot_s = projected.tpot_s
        if self._rule is Rule.GIVE_UP_SLOW:  # a projection knows nobody who is yet to come; the pace stands for them
            tpot_s = max(tpot_s, pace.step_s)
        lost = projected.ttft_s > ttft_limit_s or (request.output_tokens > 1 and tpot_s > tpot_limit_s)
        if not lost:
            return _Choice(False, 0.0, projected.ttft_s, row)
        if self._rule is Rule.SOONEST:
            missed = max(projected.ttft_s / ttft_limit_s, 1.0) + max(tpot_s / tpot_limit_s, 1.0)
            return _Choice(True, missed, projected.ttft_s, row)
        behind = projected.ttft_s - projected.prefill_s > ttft_limit_s or pace.step_s > tpot_limit_s
        harm = sequences if self._rule is Rule.GIVE_UP_SLOW and not behind else 0.0
        return _Choice(True, harm, -projected.ttft_s, row)


NAME = "oracle"


def policy_of(rule: Rule) -> Policy:
    """The oracle by one of its rules."""
    about = "a bound: knows the engines and how long answers will be"
    policy = picked_by(OraclePicker, NAME, about)
    declared = f"- type: {OraclePicker.plugin_type}\n"
    by_rule = f"{declared}    parameters: {{rule: {rule.value}}}\n"
    return replace(policy, config_text=policy.config_text.replace(declared, by_rule, 1))
