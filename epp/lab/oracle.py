"""The oracle: it looks into the engines and knows how long answers will be. A yardstick, not a policy.

It knows what no picker can: the true state of every engine and of its cache, the true step law, and the output lengths
of all requests that have arrived; nothing of those that will. So for each server it reckons what a request would come
to there, and what that would cost all that have arrived (`epp.lab.stakes`).

What is best then depends on what comes next. If more comes than can be kept, somebody has to be given up, and best all
in one place: two rules go by how many targets are kept, minus a price for the engine's time that a prompt takes, for
who comes to a warm server leaves time for others. Where nothing can be kept any more a request costs nothing, so what
is lost gathers there. If everybody can be served, giving up a server and its cache is a waste: a third rule goes by
delay alone. Of a run the oracle is given the rule that kept most targets. All are greedy: they are no proof that
nothing could be better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import exp, isfinite
from typing import Any, NamedTuple

from pydantic import Field

from epp.lab.columns import Newcomer, prefill_s
from epp.lab.experiment import LabRequest
from epp.lab.policies.policy import Policy, picked_by
from epp.lab.prompts import BlockHashes, tokens_of
from epp.lab.servers import Server
from epp.lab.stakes import Expected, Stakes
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.plugin import Parameters, Picker, Services
from epp.sim.engine import Engine
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER

_MOST_PREFILL_RATIO = 0.9
_RATE_SINCE_S = 5.0  # the least time over which arrivals are counted

_UNSAID_TTFT_S, _UNSAID_TPOT_S = 1.0, 0.05
"""For clients that name no targets: sooner is better all the same."""

_TIME_PRICE = 0.25
"""Of a second of prefill, in requests that arrive per second and server. At the knee every request needs its share of
the servers' time, so a second is worth as many; below it nothing. A quarter of it does well at all loads."""
_SLACK_PRICE = 0.1
"""Of a whole target used up, in targets kept: it decides between servers where as many would be kept."""


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


class Rule(Enum):
    """Where a request goes."""

    LOAD_LASTS = "load-lasts"  # where most targets are kept, if most of those who leave are followed by others
    LOAD_PASSES = "load-passes"  # where most targets are kept, if fewer are, and what was is soon forgotten
    NOBODY_GIVEN_UP = "nobody-given-up"  # where least is spent of the targets of all, kept or not


class _Belief(NamedTuple):
    """How a rule sees the future.

    Attributes:
        followed_ratio: see `epp.lab.stakes.Expected`.
        window_s: over which an engine's share of prefill is taken.
    """

    followed_ratio: float
    window_s: float


_BELIEFS = {
    Rule.LOAD_LASTS: _Belief(0.7, 10.0),
    Rule.LOAD_PASSES: _Belief(0.4, 3.0),
    Rule.NOBODY_GIVEN_UP: _Belief(1.0, 3.0),
}
"""Found by trial, on all workloads at loads from 0.5 to 1.2."""


class OracleParameters(Parameters):
    rule: str = Field(Rule.LOAD_LASTS.value, description="See `epp.lab.oracle.Rule`.")


class _Known:
    """A server: what is at stake there, and how much prefill it was given of late."""

    def __init__(self, stakes: Stakes, window_s: float) -> None:
        self.stakes = stakes
        self._window_s = window_s
        self._prefill_s = 0.0
        self._at_s = 0.0

    def prefill_ratio(self, now_s: float) -> float:
        fading = exp((self._at_s - now_s) / self._window_s)
        return min(self._prefill_s * fading / self._window_s, _MOST_PREFILL_RATIO)

    def given(self, seconds: float, now_s: float) -> None:
        self._prefill_s = self._prefill_s * exp((self._at_s - now_s) / self._window_s) + seconds
        self._at_s = now_s


class _Asked(NamedTuple):
    """What a request comes to wherever it goes: the fields of `Newcomer` by these names."""

    prompt_tokens: int
    output_tokens: int
    ttft_allowed_s: float
    tpot_allowed_s: float
    later_tokens: int
    later_allowed_s: float

    @classmethod
    def of(cls, request: LabRequest) -> "_Asked":
        ttft_s, tpot_s = _allowed_s(request)
        output_tokens = request.output_tokens
        later_allowed_s = max(output_tokens - 1, 1) * tpot_s
        return cls(tokens_of(request.prompt), output_tokens, ttft_s, tpot_s, max(output_tokens - 1, 0), later_allowed_s)

    def at(self, engine: Engine, hashes: Sequence[int]) -> Newcomer:
        """`hashes`: of the blocks that could be cached."""
        cached = engine.scheduler.kv.match(hashes)
        uncached_tokens = self.prompt_tokens - len(cached) * engine.config.block_tokens
        seconds = prefill_s(engine, uncached_tokens, self.prompt_tokens)
        return Newcomer(self.prompt_tokens, uncached_tokens, self.output_tokens, seconds, *self[2:])


class OraclePicker(Picker):
    """See the module's text."""

    plugin_type = "lab-oracle"
    parameters_model = OracleParameters

    def __init__(self, name: str, parameters: OracleParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._rule = Rule(parameters.rule)
        self._belief = _BELIEFS[self._rule]
        if not isinstance(services, Foresight):
            raise ValueError("the oracle runs in the lab only, as the policy of that name")
        self._foresight = services
        self._servers: dict[str, _Known] = {}
        self._placed: dict[int, Newcomer] = {}  # by identity: a schedule outlives its run
        self._arrived = 0

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        now_s, request = cycle.now_s, self._foresight.arriving
        self._arrived += 1
        time_price = _TIME_PRICE * self._arrived / max(now_s, _RATE_SINCE_S) / len(candidates)
        asked = _Asked.of(request)
        hashes_by_size: dict[int, tuple[int, ...]] = {}
        best: tuple[float, int, _Known, Newcomer] | None = None
        for row in candidates.rows.tolist():
            server = self._foresight.server(candidates.snapshot.endpoints[row].name)
            if not server.alive or server.failing:
                continue
            known = self._servers.get(server.spec.name)
            if known is None:
                known = self._servers[server.spec.name] = _Known(Stakes(server, self._placed), self._belief.window_s)
            config = server.engine.config
            hashes = hashes_by_size.get(config.block_tokens)
            if hashes is None:
                full_blocks = (asked.prompt_tokens - 1) // config.block_tokens
                hashes = self._foresight.block_hashes.of(request.prompt, config.block_tokens)[:full_blocks]
                hashes_by_size[config.block_tokens] = hashes
            new = asked.at(server.engine, hashes)
            expected = Expected(self._belief.followed_ratio, known.prefill_ratio(now_s))
            outlook = known.stakes.outlook(new, now_s, expected)
            if self._rule is Rule.NOBODY_GIVEN_UP:
                worth = -outlook.used_up
            else:
                worth = outlook.keeps - outlook.losses - _SLACK_PRICE * outlook.used_up_in_hope
                worth -= time_price * new.prefill_s
            if best is None or worth > best[0]:
                best = worth, row, known, new
        if best is None:
            return (int(candidates.rows[0]),)
        _, row, known, new = best
        known.given(new.prefill_s, now_s)
        self._placed[id(request)] = new
        return (row,)


def _allowed_s(request: LabRequest) -> tuple[float, float]:
    """For the first token, and for each after it."""
    headers = request.headers
    ttft_s, tpot_s = (float(headers.get(name, "inf")) / 1e3 for name in (TTFT_SLO_HEADER, TPOT_SLO_HEADER))
    return ttft_s if isfinite(ttft_s) else _UNSAID_TTFT_S, tpot_s if isfinite(tpot_s) else _UNSAID_TPOT_S


NAME = "oracle"


def policy_of(rule: Rule = Rule.LOAD_LASTS) -> Policy:
    """The oracle by one of its rules."""
    about = "a yardstick: knows the engines and how long answers will be"
    policy = picked_by(OraclePicker, NAME, about)
    declared = f"- type: {OraclePicker.plugin_type}\n"
    by_rule = f"{declared}    parameters: {{rule: {rule.value}}}\n"
    return replace(policy, config_text=policy.config_text.replace(declared, by_rule, 1), knows_hardware=True)
