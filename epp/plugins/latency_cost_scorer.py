"""The server where a request costs least is best: its wait there, times those who share the server, times its pace.

Three things speak against a server: the prompts that are to be computed before the first token, the requests that every
further millisecond of prefill holds up, and slow steps. Their product keeps servers level in all three at once (without
the pace and in tokens instead of milliseconds it is the published policy LMetric). In milliseconds it is fair between a
fast server and a slow one, between one long prompt and many short ones, and between waiting for a cached prefix and
computing it elsewhere: affinity needs no threshold, it is what comes out cheapest.

To this come the targets, where a request names some. What a choice is expected to cost in targets kept
(`epp.plugins._targets_at_stake`) counts by a high power: it decides, and the price where as many would be kept.
At overload time beyond a target, which is missed then, does not count in the price. So a server that is at its limit is
spared, one that has room for more takes it, and what cannot be saved goes where it spoils least, to servers that are
late already, instead of making all of them late.

How fast each server is is learned from its own answers (`epp.latency.endpoint_laws`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from epp.latency.endpoint_laws import EndpointLaws
from epp.latency.types import Target
from epp.ledger import Outcome
from epp.plugins._arrivals import Arrivals
from epp.plugins._company import Pace, company_of
from epp.plugins._cost_explained import at_stake, factors
from epp.plugins._lasting import Lasting
from epp.plugins._latency_samples import measure
from epp.plugins._odds import LEAST_TARGET_MS
from epp.plugins._prefill import prefill_row
from epp.plugins._prefill_backlog import PrefillBacklog, attention_pairs
from epp.plugins._progress import Hope, Progress
from epp.plugins._reuse import Reuse
from epp.plugins._signals import fresh
from epp.plugins._slo import Slo, slo_of
from epp.plugins._slow_start import without_held_back, zero_for_others
from epp.plugins._targets_at_stake import Prospect, Spreads, look_ahead
from epp.plugins._unseen_first_tokens import UnseenFirstTokens
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    IN_FLIGHT_LOAD,
    PREFIX_MATCH,
    SLOW_START,
    UNCACHED_TOKENS,
    DataKey,
    FloatArray,
    InFlightLoad,
    IntArray,
)
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.plugin import (
    EndHook,
    FirstTokenHook,
    Parameters,
    PreRequest,
    RequestProcessor,
    ResponseHeadersHook,
    Scorer,
    Services,
)

# An 8B model on one H100; see `epp.latency.prior` for the sources. A pair of tokens that attend: 4 · layers · width
# operations beside the 2 · parameters of a token, at half the efficiency, of 18.5 µs per token.
_TTFT_MS = (28.0, 0.0185, 1.2e-6)  # constant, per token to compute, per pair
_TPOT_MS = (7.2, 0.1, 0.00005, 1.0)  # constant, per request there, per token of context, per ms of prefill meanwhile
_MOST_STALL = 2.0  # ms by which others are later per ms of prefill: it is 1, but what a prefill takes is learned, too
_OUTPUT_SAMPLES = 500  # so many the mean length of answers remembers
_FEW_REQUESTS = 4
_ALIKE_RATIO = 0.95  # idle servers whose costs differ by less are taken to be alike
_MOST_PREFILL_RATIO = 0.9
_OTHERS_RATIO, _OTHERS_REQUESTS = 1.25, 8.0  # pages are old: so far above our own count they say nothing of others


class LatencyCostParameters(Parameters):
    stake_exponent: float = Field(
        3.33,
        ge=0,
        le=20,  # far beyond, prices are no numbers any more
        description="How much the targets at stake count beside the price: as this power; 0: as if none were named.",
    )
    expected_output_tokens: float = Field(
        150.0, gt=0, description="Length of an answer before any was seen; then it is learned."
    )
    in_flight_load_producer_name: str = Field("", description="Whose load to read; empty: the default producer.")
    latency_prediction_info_producer_name: str = Field(
        "", description="Who says which servers are new or failing; empty: the default producer."
    )


@dataclass(slots=True)
class _Priced:
    """What the candidates were like at the decision. Arrays have one value per row.

    Attributes:
        uncached_tokens, pairs: of this request's prompt.
        fewest_uncached_tokens: those who have to wait for their turn included.
        tokens_before, pairs_before: of those that wait.
        requests: with this one.
        context_tokens: of those that decode.
        own_ms: of prefill.
        ttft_ms: until the first token.
        stall_ratio: for how much of it the others get no tokens.
        all_by_ours: how many times as many requests all processes that pick have in flight as this one.
        in_time: how likely this request keeps its TTFT target; 1 if there is none.
    """

    slo: Slo
    rows: IntArray
    uncached_tokens: FloatArray
    fewest_uncached_tokens: float
    pairs: FloatArray
    tokens_before: FloatArray
    pairs_before: FloatArray
    requests: FloatArray
    context_tokens: FloatArray
    own_ms: FloatArray
    ttft_ms: FloatArray
    stall_ratio: FloatArray
    all_by_ours: float
    in_time: FloatArray


class _Met(NamedTuple):
    """What a request meets at each candidate, by what was learned.

    Attributes:
        overhead_ms: what every first token takes.
        prompt_token_ms: for a token of a prompt.
        backlog_ms: the prompts before it.
        wait_ms: step, backlog and its own prompt.
        step_ms: as is to be expected while its answer is made.
        more_step_ms: what it adds to a step.
        prefill_ratio: share of the time that goes to prompts.
    """

    overhead_ms: FloatArray
    prompt_token_ms: FloatArray
    backlog_ms: FloatArray
    wait_ms: FloatArray
    step_ms: FloatArray
    more_step_ms: FloatArray
    prefill_ratio: FloatArray


@dataclass(slots=True)
class _Sent:
    """The server that was chosen, and what was to be computed there: its own prompt, and those before it.

    Attributes:
        mean_requests, more_requests: without this one, of the candidates on average, and how many more were there.
    """

    endpoint_id: str
    mean_requests: float
    more_requests: float
    tokens: float
    pairs: float
    tokens_before: float
    pairs_before: float

    @property
    def ttft_terms(self) -> tuple[float, float, float]:
        return 1.0, self.tokens + self.tokens_before, self.pairs + self.pairs_before


class LatencyCostScorer(RequestProcessor, Scorer, PreRequest, ResponseHeadersHook, FirstTokenHook, EndHook):
    """score = lowest cost / cost, with

        cost = wait · (requests there + 1) · TPOT · targets at stake ^ stakeExponent
        wait = step + prefill before it + its own prefill

    in ms by what was learned of each server. A TPOT counts as its target at most, at overload a wait as the TTFT
    target, and of the requests there those that can still keep their targets. At stake are the targets of this request,
    of those there whom it slows down, and of those who come after it. A cached prefix is prefill that is not needed.
    Two idle servers of which one prefills the prompt in 93 ms and the other, three times as slow, in 280 ms, with steps
    of 7 and 12 ms: costs 100 · 1 · 7 and 292 · 1 · 12, scores 1 and 0.2.

    *Without targets* (`x-slo-ttft-ms`, `x-slo-tpot-ms`) nothing is at stake, and all requests there count. *New
    servers* are taken to be like the pool. Where predicted-latency-producer runs, new and failing servers have their
    turn as it says. *Others' traffic* counts where a server reports far more requests than we sent.

    Best with max-score-picker: the product keeps servers level by itself.
    """

    plugin_type = "latency-cost-scorer"
    parameters_model = LatencyCostParameters

    def __init__(self, name: str, parameters: LatencyCostParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._exponent = parameters.stake_exponent
        self._load_key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)
        self._uncached_key = UNCACHED_TOKENS.by(parameters.in_flight_load_producer_name)
        self._match_key = PREFIX_MATCH.by(None)
        self._slow_start_key = SLOW_START.by(parameters.latency_prediction_info_producer_name)
        self._ttft, self._tpot = EndpointLaws(_TTFT_MS), EndpointLaws(_TPOT_MS)
        self._backlog = PrefillBacklog()
        self._progress = Progress()
        self._arrivals = Arrivals()
        self._reuse = Reuse()
        self._lasting = Lasting()
        self._unseen = UnseenFirstTokens(self._first_token_was_due)
        self._output_tokens = parameters.expected_output_tokens
        self._answers = 1
        self._version: int | None = None
        self._endpoint_ids: tuple[str, ...] = ()

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return DEFAULT_PROMPT, self._match_key, self._load_key, self._uncached_key

    def process_request(self, cycle: Cycle) -> Denial | None:
        """Before anybody looks at the load, bring it up to date."""
        self._unseen.catch_up(cycle.now_s)
        return None

    # --- the price --------------------------------------------------------------------------------------------------

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        eligible = without_held_back(cycle, candidates, self._slow_start_key)
        self._follow(candidates.snapshot)
        priced = self._look(cycle, eligible)
        if len(eligible) < len(candidates):
            priced.fewest_uncached_tokens = float(self._uncached_tokens(cycle, candidates).min())
        return zero_for_others(self._scores(cycle, eligible, priced), eligible, candidates)

    def _scores(self, cycle: Cycle, candidates: Candidates, priced: _Priced) -> FloatArray:
        by_profile = cycle.state.get(self.name)
        if not isinstance(by_profile, list):
            by_profile = cycle.state[self.name] = []
        rows = _index_of(candidates)
        self._has_come(rows, candidates, by_profile, cycle.now_s)
        by_profile.append(priced)
        overhead, per_token, per_pair = self._laws(self._ttft, candidates)
        base, per_request, per_context, stall = self._laws(self._tpot, candidates)
        own_ms = priced.own_ms = per_token * priced.uncached_tokens + per_pair * priced.pairs
        priced.stall_ratio = np.minimum(stall, _MOST_STALL)
        there, now_s = priced.requests - 1.0, cycle.now_s
        step_ms = base + per_request * there + per_context * priced.context_tokens
        self._progress.tick(rows, step_ms, there, priced.context_tokens, now_s)
        backlog_ms = per_token * priced.tokens_before + per_pair * priced.pairs_before
        prefill_ratio = np.minimum(self._progress.prefill_ratios(rows, now_s), _MOST_PREFILL_RATIO)
        more_step_ms = per_request + per_context * _prompt_tokens(cycle)
        wait_ms = base + backlog_ms + own_ms
        priced.ttft_ms = overhead + backlog_ms + own_ms
        if not (priced.slo.constrained and self._exponent > 0):
            tpot_ms = (step_ms + more_step_ms) / (1.0 - prefill_ratio)
            cost = wait_ms * priced.requests * tpot_ms
            cycle.explain(self.name, candidates, factors(priced.uncached_tokens, own_ms, wait_ms, there, tpot_ms, cost))
            return _scored(cost, there)
        lasting = self._lasting.on_average
        step_ms = base + per_request * lasting(there) + per_context * lasting(priced.context_tokens)
        met = _Met(overhead, per_token, backlog_ms, wait_ms, step_ms, more_step_ms, prefill_ratio)
        return self._held_to_targets(cycle, candidates, priced, met)

    def _held_to_targets(self, cycle: Cycle, candidates: Candidates, priced: _Priced, met: _Met) -> FloatArray:
        slo, own_ms, stall, there = priced.slo, priced.own_ms, priced.stall_ratio, priced.requests - 1.0
        left_ratio = 1.0 - met.prefill_ratio
        token_ms, more_ms = met.step_ms / left_ratio, met.more_step_ms / left_ratio
        tpot_ms = token_ms + more_ms
        pool_tpot_ms = float((met.step_ms + met.more_step_ms).mean()) / (1.0 - float(met.prefill_ratio.mean()))
        new_tokens = cycle.request.max_output_tokens or np.inf
        pace = Pace(token_ms, more_ms, stall * met.backlog_ms, stall * own_ms, stall * met.prompt_token_ms, there)
        in_flight = self._progress.in_flight(candidates.rows, candidates.everyone, cycle.now_s)
        company = company_of(in_flight, pace, slo.tpot_ms, self._tpot.spread, self._output_tokens, new_tokens)
        prospect = Prospect(met.overhead_ms + met.backlog_ms + cycle.waited_ms, own_ms, tpot_ms, pool_tpot_ms)
        spreads = Spreads(self._ttft.spread, self._tpot.spread)
        rows = _index_of(candidates)
        arrivals_per_s = self._arrivals.per_s(rows) * priced.all_by_ours
        outlook = look_ahead(slo, prospect, company, spreads, arrivals_per_s, self._reuse.ratio)
        priced.in_time = outlook.in_time
        wait_ms = _priced_ms(slo.ttft_ms, met.wait_ms, late_counts=1.0 - outlook.overload_ratio)
        held_up = there + outlook.overload_ratio * (company.hopeful - there)
        price = wait_ms * (held_up + 1.0) * _priced_ms(slo.tpot_ms, tpot_ms, late_counts=0.0)
        cost = price * outlook.at_stake**self._exponent
        explained = factors(priced.uncached_tokens, own_ms, met.wait_ms, there, tpot_ms, cost)
        cycle.explain(self.name, candidates, explained | at_stake(slo, prospect, company, outlook))
        return _scored(cost, there)

    def _has_come(
        self, rows: IntArray | slice, candidates: Candidates, before: Sequence[_Priced], now_s: float
    ) -> None:
        """Count the request where it may go, once for each server: several profiles may ask about it."""
        for priced in before:
            rows = np.setdiff1d(candidates.rows if isinstance(rows, slice) else rows, priced.rows)
        self._arrivals.add(rows, len(candidates), now_s)

    def _all_by_ours(self, load: InFlightLoad | None) -> float:
        """How many times as much all processes that pick do as this one, by what they have in flight. By chance few
        are from here; that says little."""
        ours = self._progress.requests
        all_in_flight = ours if load is None else max(float(load.requests.sum()), ours)
        return (all_in_flight + _FEW_REQUESTS) / (ours + _FEW_REQUESTS)

    def _look(self, cycle: Cycle, candidates: Candidates) -> _Priced:
        prompt_tokens, load = _prompt_tokens(cycle), cycle.get(self._load_key)
        nothing = np.zeros(len(candidates))
        own = self._uncached_tokens(cycle, candidates)
        before = nothing if load is None else candidates.take(load.prefill_tokens)
        requests = nothing if load is None else candidates.take(load.requests)
        pairs_per_token = self._backlog.pairs_per_token(self._endpoint_ids)
        snapshot = candidates.snapshot
        reported = fresh(snapshot.waiting_requests, candidates, cycle.now_s) + fresh(
            snapshot.running_requests, candidates, cycle.now_s
        )
        others = np.fmax(reported - _OTHERS_RATIO * requests - _OTHERS_REQUESTS, 0.0)
        return _Priced(
            slo=slo_of(cycle.request.headers),
            rows=candidates.rows,
            uncached_tokens=own,
            fewest_uncached_tokens=float(own.min()),
            pairs=attention_pairs(own, max(prompt_tokens, 1.0)),
            tokens_before=before,
            pairs_before=before * candidates.take(pairs_per_token),
            requests=requests + others + 1.0,
            context_tokens=nothing if load is None else candidates.take(load.decode_tokens),
            own_ms=nothing,
            ttft_ms=nothing,
            stall_ratio=nothing,
            all_by_ours=self._all_by_ours(load),
            in_time=nothing + 1.0,
        )

    def _uncached_tokens(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        uncached = cycle.get(self._uncached_key)
        if uncached is None:
            return np.ones(len(candidates))
        return np.maximum(candidates.take(uncached.prefill_tokens), 1.0)  # the last of a prompt is always computed

    def _laws(self, laws: EndpointLaws, candidates: Candidates) -> FloatArray:
        coefficients = laws.of(self._endpoint_ids)
        return coefficients[:, _index_of(candidates)]

    def _follow(self, snapshot: Snapshot) -> None:
        if snapshot.endpoints_version == self._version:
            return
        self._version = snapshot.endpoints_version
        self._endpoint_ids = tuple(endpoint.id for endpoint in snapshot.endpoints)
        self._ttft.keep(snapshot.row_by_id)
        self._tpot.keep(snapshot.row_by_id)
        self._progress.follow(self._endpoint_ids)
        self._arrivals.follow(self._endpoint_ids)

    # --- what comes of it -------------------------------------------------------------------------------------------

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        by_profile = cycle.state.pop(self.name, None)
        if not isinstance(by_profile, list):
            return
        chosen = decision.endpoints[0]
        row = decision.snapshot.row_by_id[chosen.id]
        for priced in by_profile:  # what is kept of a server is the same for each profile that looked at it
            at = int(np.searchsorted(priced.rows, row))
            if at < len(priced.rows) and priced.rows[at] == row:
                break
        else:
            return
        prompt_tokens = _prompt_tokens(cycle)
        self._reuse.add(prompt_tokens, prompt_tokens - priced.fewest_uncached_tokens)
        own, pairs = float(priced.uncached_tokens[at]), float(priced.pairs[at])
        before, pairs_before = float(priced.tokens_before[at]), float(priced.pairs_before[at])
        mean_requests = float(priced.requests.mean()) - 1.0
        more_requests = float(priced.requests[at]) - 1.0 - mean_requests
        cycle.state[self.name] = _Sent(chosen.id, mean_requests, more_requests, own, pairs, before, pairs_before)
        target_ms, prefill_ms = priced.slo.ttft_ms, 0.0
        if prefill_row(decision) is None:
            self._backlog.add(cycle.request.id, chosen.id, own, pairs)
            prefill_ms = float(priced.own_ms[at]) * priced.all_by_ours  # others send there, too
        deadline_s = np.inf if target_ms is None else cycle.now_s + (target_ms - cycle.waited_ms) / 1e3
        tpot_target_ms = np.inf if priced.slo.tpot_ms is None else priced.slo.tpot_ms
        hope = Hope(float(priced.in_time[at]), deadline_s, tpot_target_ms)
        stall_ms = prefill_ms * float(priced.stall_ratio[at])
        self._progress.add(cycle.request.id, chosen.id, hope, prefill_ms, stall_ms, cycle.now_s)
        if not cycle.request.streaming:
            self._unseen.expect(cycle.request.id, cycle.now_s + float(priced.ttft_ms[at]) / 1e3)

    def _first_token_was_due(self, request_id: str, at_s: float) -> None:
        """Of an answer in one piece: its prompt is no longer what others have to wait for."""
        self.services.ledger.first_token(request_id)
        self._backlog.first_token(request_id)
        self._progress.first_token(request_id, at_s)

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        """Whom another server answers, leaves the one that was chosen nothing to compute."""
        sent = cycle.state.get(self.name)
        if isinstance(sent, _Sent) and decision.answered_by(served).id != sent.endpoint_id:
            self._backlog.remove(cycle.request.id)
            self._progress.forget(cycle.request.id)

    def first_token(self, cycle: Cycle, decision: Decision, at_s: float) -> None:
        more = self._backlog.first_token(cycle.request.id)
        sent = cycle.state.get(self.name)
        if not isinstance(sent, _Sent):
            return
        sent.tokens_before = max(sent.tokens_before + more.tokens, 0.0)
        sent.pairs_before = max(sent.pairs_before + more.pairs, 0.0)
        self._progress.first_token(cycle.request.id, at_s)

    def end(self, cycle: Cycle, decision: Decision, outcome: Outcome) -> None:
        self._backlog.remove(cycle.request.id)
        actual_ms, dropped = measure(cycle.request, outcome)
        tpot_ms, first_s = actual_ms.get(Target.TPOT), outcome.first_token_s
        later_tokens = 0.0 if tpot_ms is None or first_s is None else (outcome.ended_s - first_s) * 1e3 / tpot_ms
        life = self._progress.end(cycle.request.id, outcome.ended_s, later_tokens)
        sent = cycle.state.pop(self.name, None)
        if not isinstance(sent, _Sent) or outcome.served_endpoint_id != sent.endpoint_id or dropped is not None:
            return
        tokens = outcome.usage.completion_tokens
        if tokens is not None and tokens > 0:
            self._answers += 1
            self._output_tokens += (tokens - self._output_tokens) / min(self._answers, _OUTPUT_SAMPLES)
        if Target.TTFT in actual_ms and prefill_row(decision) is None:
            self._ttft.observe(sent.endpoint_id, sent.ttft_terms, actual_ms[Target.TTFT])
        if tpot_ms is not None and life is not None:
            self._lasting.add(sent.more_requests, life.requests - 1.0 - sent.mean_requests)
            self._tpot.observe(sent.endpoint_id, (1.0, *life), tpot_ms)

    def dump_state(self) -> Mapping[str, Any]:
        return {
            "ttft": self._ttft.state(),
            "tpot": self._tpot.state(),
            "expected_output_tokens": self._output_tokens,
            "reused_prompt_ratio": self._reuse.ratio,
            "lasting_load_ratio": self._lasting.ratio,
        }


def _index_of(candidates: Candidates) -> IntArray | slice:
    """To take them from a column with a value per endpoint, which is not copied if they are all."""
    return slice(None) if candidates.everyone else candidates.rows


def _prompt_tokens(cycle: Cycle) -> float:
    prompt = cycle.get(DEFAULT_PROMPT)
    return 0.0 if prompt is None else float(prompt.tokens)


def _scored(cost: FloatArray, there: FloatArray) -> FloatArray:
    """Of idle servers that differ by no more than chance, none is better: otherwise one that looks a hair slower would
    have no requests at all where load is light."""
    best = int(cost.argmin())
    scores: FloatArray = cost[best] / cost
    if there[best] == 0:
        scores[(there == 0) & (scores > _ALIKE_RATIO)] = 1.0
    return scores


def _priced_ms(target_ms: float | None, expected_ms: FloatArray, late_counts: float) -> FloatArray:
    """What is beyond the target has missed it, which is at stake, and counts by this factor only. At overload late
    requests would otherwise keep all servers level, and with more work than can be done in time all of them late."""
    if target_ms is None:
        return expected_ms
    priced_ms: FloatArray = np.minimum(expected_ms, max(target_ms, LEAST_TARGET_MS))
    if late_counts:
        priced_ms += late_counts * (expected_ms - priced_ms)
    return priced_ms
