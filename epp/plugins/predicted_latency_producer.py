"""How long would this request take on each server? Asked once per request, for all of them; learned from at its end.

The features of the decision are kept with the request, so that what is learned is what was decided on. Whatever is
missing (a predictor, its readiness, time) costs the prediction, never the request: consumers then do without, and the
reason is in a metric and in the decision record.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from epp.endings import EndCause, is_good
from epp.inference.request import Request
from epp.latency.types import Prediction, Promise, Sample, Target
from epp.ledger import Outcome
from epp.plugins._latency_samples import GENERATING_APIS, is_empty, measure, promises_of, rows_at_work, targets_by_row
from epp.plugins._latency_situation import SituationReader
from epp.plugins._latency_targets import Judge, RunningTargets
from epp.plugins._predicted_latency_parameters import PredictedLatencyParameters
from epp.plugins._prediction_budget import PredictionBudget
from epp.plugins._slo import Slo, opted_in, slo_of
from epp.plugins._slow_start import SlowStartTracker
from epp.plugins._unseen_first_tokens import UnseenFirstTokens
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle, Observation
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    IN_FLIGHT_LOAD,
    LATENCY_PREDICTION,
    SLOW_START,
    DataKey,
    InFlightLoad,
    IntArray,
)
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.plugin import (
    EndHook,
    FirstTokenHook,
    PreRequest,
    Producer,
    Replicated,
    RequestProcessor,
    ResponseHeadersHook,
    Services,
)

_DUMPED_ENDPOINTS = 100
_TARGETS = tuple(Target)
_PREDICTED = {target: f"request_predicted_{target}_seconds" for target in Target}
_SERVED = {target: f"request_served_{target}_seconds" for target in Target}


@dataclass(slots=True)
class _Asked:
    """What is kept of a request until it ends.

    Attributes:
        prediction: and the snapshot rows that it is about, ascending; only until the choice, since a pool may be large.
        used: the prediction was published.
        promises: of those that may serve the request, by row of the decision's snapshot.
        booked: endpoint and TPOT target that run there on its account.
        answering: the endpoint that has begun a good answer.
        passed_over: who was asked before the one that answers, until that is noted.
    """

    slo: Slo
    rows: IntArray
    prediction: Prediction | None = None
    used: bool = False
    promises: Mapping[int, Promise] = field(default_factory=dict)
    booked: tuple[str, float] | None = None
    answering: str | None = None
    passed_over: Sequence[str] = ()


class PredictedLatencyProducer(
    RequestProcessor, Producer, PreRequest, ResponseHeadersHook, FirstTokenHook, EndHook, Replicated
):
    """Publishes TTFT and TPOT of the request on each candidate, and whether that is within its targets.

    *Targets*: `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms`, or `x-slo-ttft-ms` and `x-slo-tpot-ms`. A missing one
    is no constraint. What is not a positive number is counted and is no target. The TTFT target counts from the
    request's receipt: headroom = target − time spent here − prediction. The TPOT target is target · sloBufferFactor,
    or the strictest among the requests running on that server, if that is lower: 50 ms here, 30 ms there, factor 1:
    a server predicted at 35 ms has a headroom of −5 ms. Servers that only prefill have no TPOT.

    *Streams*: the first that the client sees of an answer that does not stream is its end, so there the end-to-end
    time stands for TTFT, and there is no TPOT. Its prompt counts as prefilled from when that was predicted.

    *Opting out*: `x-prediction-based-scheduling: false`. Such requests are still learned from.

    *New and failing servers* are tried, not flooded; see slowStartSamples and failureThreshold. This holds whether or
    not there are predictions.

    *Budget*: after a prediction that took longer than budgetMs one request goes without, after the next such two, then
    four, up to 64; a quick one ends it. Such requests, too, are learned from.
    """

    plugin_type = "predicted-latency-producer"
    parameters_model = PredictedLatencyParameters

    def __init__(self, name: str, parameters: PredictedLatencyParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._parameters = parameters
        self._predictor = services.predictor
        self._budget = PredictionBudget(parameters.budget_ms / 1e3, services.timer)
        self._targets = RunningTargets()
        self._judge = Judge(self._targets, parameters.slo_buffer_factor, parameters.like_llm_d)
        self._unseen = UnseenFirstTokens(lambda request_id, at_s: services.ledger.first_token(request_id))
        self._slow_start = SlowStartTracker(parameters.slow_start_samples, parameters.failure_threshold)
        self._reader = SituationReader(parameters.endpoint_role_label, parameters.prefix_match_info_producer_name)
        self._load_key = IN_FLIGHT_LOAD.by(parameters.in_flight_load_producer_name)
        self._prediction_key = LATENCY_PREDICTION.by(name)
        self._slow_start_key = SLOW_START.by(name)
        self._now_s = 0.0  # of the last request: this object has no clock
        self._newest_version: int | None = None

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return DEFAULT_PROMPT, self._reader.match_key, self._load_key

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return self._prediction_key, self._slow_start_key

    # --- before the choice ------------------------------------------------------------------------------------------

    def process_request(self, cycle: Cycle) -> Denial | None:
        """Before anybody looks at the load, bring it up to date."""
        self._unseen.catch_up(cycle.now_s)
        return None

    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        if not cycle.request.generates:
            return
        snapshot, self._now_s = candidates.snapshot, cycle.now_s
        self._follow(snapshot)
        asked = cycle.state[self.name] = _Asked(slo_of(cycle.request.headers), candidates.rows)
        for header in asked.slo.invalid:
            self._observe(cycle, "slo_header_invalid", 1, header=header)
        load = cycle.get(self._load_key) or InFlightLoad(*self.services.ledger.load(snapshot))
        slow_start = self._slow_start.choose(candidates.rows, snapshot, load.requests, cycle.now_s, cycle.rng)
        if slow_start is not None:
            cycle.publish(self._slow_start_key, slow_start)
        reason = self._predict(cycle, candidates, load, asked)
        if reason is not None:
            cycle.notes[self.name] = f"no prediction: {reason}"
            self._observe(cycle, "prediction_fallback", 1, reason=reason.replace(" ", "_"))

    def _predict(self, cycle: Cycle, candidates: Candidates, load: InFlightLoad, asked: _Asked) -> str | None:
        """Publish predictions; or why there are none."""
        if self._predictor is None:
            return "no predictor"
        if cycle.request.api not in GENERATING_APIS:
            return "not generating"
        situation = self._reader.read(cycle, candidates, load)
        if not self._budget.allows():
            asked.prediction = self._predictor.without_prediction(situation)
            return "over budget"
        try:
            with self._budget:
                asked.prediction = self._predictor.predict(
                    situation, quantile=self._parameters.quantile, e2e=not self._streams(cycle)
                )
        except Exception:
            self._observe(cycle, "prediction_fallback", 1, reason="failed")
            raise  # the framework counts it, logs it now and then, and leaves a note
        if self._budget.last_s is not None:
            self._observe(cycle, "request_ttft_prediction_duration_seconds", self._budget.last_s)
            self._observe(cycle, "request_tpot_prediction_duration_seconds", self._budget.last_s)
        if not self._parameters.predict_in_produce:
            return "switched off"
        if not opted_in(cycle.request.headers, self._parameters.default_opt_in):
            return "opted out"
        ready = {target for target in _TARGETS if self._predictor.is_ready(target)}
        if not ready & {Target.TTFT, Target.E2E}:
            return "not ready"
        published = self._judge(
            asked.prediction,
            asked.slo,
            candidates.snapshot,
            candidates.rows,
            ready=ready,
            streams=self._streams(cycle),
            only_prefills=self._reader.only_prefills,
            waited_ms=cycle.waited_ms,
            requests=load.requests,
        )
        if not np.count_nonzero(published.known):
            return "nothing known"
        cycle.publish(self._prediction_key, published)
        asked.used = True
        return None

    def _streams(self, cycle: Cycle) -> bool:
        wanted = cycle.request.streaming and not self._parameters.like_llm_d
        return self._parameters.streaming_mode or wanted

    def _follow(self, snapshot: Snapshot) -> None:
        """Keep up with who is in the pool. Endpoints that are there from the start are not new."""
        self._reader.follow(snapshot)
        version, newest = snapshot.endpoints_version, self._newest_version
        if newest is not None and version <= newest:
            return  # nothing changed; or a request that was held carries an old snapshot
        self._newest_version = version
        for endpoint_id in self._slow_start.keep(snapshot.row_by_id):
            if self._predictor is not None:
                self._predictor.forget(endpoint_id)
        for endpoint_id in self._reader.endpoint_ids:
            if not self._slow_start.knows(endpoint_id):
                learned = 0 if self._predictor is None else self._predictor.samples_of(endpoint_id)
                self._slow_start.add(endpoint_id, self._parameters.slow_start_samples if newest is None else learned)

    # --- after the choice -------------------------------------------------------------------------------------------

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        asked = cycle.state.get(self.name)
        if not isinstance(asked, _Asked):
            return
        chosen = decision.endpoints[0]
        row = decision.snapshot.row_by_id[chosen.id]
        if asked.prediction is not None:
            asked.promises = promises_of(asked.prediction, asked.rows, rows_at_work(decision))
            asked.prediction = None
        promise = asked.promises.get(row)
        if asked.used and promise is not None:
            cycle.notes[self.name] = promise
        if not cycle.request.streaming and promise is not None and Target.TTFT in promise.targets:
            self._unseen.expect(cycle.request.id, cycle.now_s + promise.targets[Target.TTFT].mean_ms / 1e3)
        slow_start = cycle.get(self._slow_start_key)
        if slow_start is not None and slow_start.turn == row:
            self._observe(cycle, "slow_start_requests", 1)
        target_ms = asked.slo.tpot_ms
        if self._parameters.like_llm_d:
            target_ms = target_ms or 0.0
        if target_ms is not None and self._streams(cycle):
            if self._targets.add(chosen.id, target_ms):
                self._tell_lowest(chosen.id)
            asked.booked = (chosen.id, target_ms)

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        """Who answers, if that is a good answer; and who was asked before it."""
        asked = cycle.state.get(self.name)
        if isinstance(asked, _Asked):
            answering = decision.answered_by(served).id
            asked.passed_over = _passed_over(decision, answering)
            asked.answering = answering if is_good(status) else None

    def first_token(self, cycle: Cycle, decision: Decision, at_s: float) -> None:
        """The server lives, however long the rest takes."""
        asked = cycle.state.get(self.name)
        if isinstance(asked, _Asked) and asked.answering is not None:
            self._note("answers", asked.answering, cycle.now_s)
            self._note_passed_over(asked, cycle.now_s, at_s)

    def end(self, cycle: Cycle, decision: Decision, outcome: Outcome) -> None:
        asked = cycle.state.pop(self.name, None)
        if not isinstance(asked, _Asked):
            return
        if asked.booked is not None and self._targets.remove(*asked.booked):
            self._tell_lowest(asked.booked[0])
        self._note_passed_over(asked, outcome.dispatched_s, outcome.ended_s)
        self._watch(cycle.request, outcome)
        actual_ms, dropped = measure(cycle.request, outcome)
        if dropped is None:
            self._check_targets(cycle, asked.slo, outcome, actual_ms)
            dropped = self._learn(cycle, decision, asked, outcome, actual_ms)
        if dropped is not None:
            self._observe(cycle, "prediction_samples_dropped", 1, reason=dropped)

    def _note_passed_over(self, asked: _Asked, sent_s: float, now_s: float) -> None:
        """Another server answers: these would have had the request, and a proxy goes on only from who fails. As few
        requests stay with one that refuses them, it would look idle, and have them all."""
        for endpoint_id in asked.passed_over:
            self._note("failed", endpoint_id, sent_s, now_s)
        asked.passed_over = ()

    def _watch(self, request: Request, outcome: Outcome) -> None:
        """Failing servers. What the client did is not the server's fault, nor its merit."""
        status, natural = outcome.status, outcome.cause is EndCause.NATURAL
        broken = natural and is_good(status) and is_empty(request, outcome)
        if broken or outcome.cause is EndCause.UPSTREAM_ERROR or (status is not None and status >= 500):
            self._note("failed", outcome.served_endpoint_id, outcome.dispatched_s, outcome.ended_s)
        elif natural and is_good(status):
            if outcome.first_token_s is None:
                self._note("answers", outcome.served_endpoint_id, outcome.dispatched_s)
            self._note("answered", outcome.served_endpoint_id, outcome.dispatched_s)

    def _learn(
        self, cycle: Cycle, decision: Decision, asked: _Asked, outcome: Outcome, actual_ms: Mapping[Target, float]
    ) -> str | None:
        """One sample per server that worked for the request; or why there is none."""
        if self._predictor is None or not asked.promises:
            return "no_features"
        served_row = decision.snapshot.row_by_id.get(outcome.served_endpoint_id)
        if served_row not in asked.promises or served_row is None:
            return "served_elsewhere"
        for row, measured_ms in targets_by_row(decision, served_row, actual_ms).items():
            promise = asked.promises[row]
            endpoint_id = decision.snapshot.endpoints[row].id
            self._predictor.observe(Sample(endpoint_id, promise, outcome.ended_s, dict(measured_ms)))
            for target, actual in measured_ms.items():
                if asked.used and target in promise.targets:
                    predicted_ms = promise.targets[target].mean_ms
                    self._observe(cycle, _PREDICTED[target], predicted_ms / 1e3)
                    self._observe(cycle, _SERVED[target], actual / 1e3)
        return None

    def _check_targets(self, cycle: Cycle, slo: Slo, outcome: Outcome, actual_ms: Mapping[Target, float]) -> None:
        """Count targets that were missed: TTFT as the client sees it, from receipt."""
        waited_ms = (outcome.dispatched_s - outcome.received_s) * 1e3
        first = Target.TTFT if outcome.streamed else Target.E2E
        for target, limit_ms, spent_ms in ((first, slo.ttft_ms, waited_ms), (Target.TPOT, slo.tpot_ms, 0.0)):
            if limit_ms is not None and target in actual_ms:
                self._observe(cycle, "request_slo_checked", 1, type=target.value)
                if actual_ms[target] + spent_ms > limit_ms:
                    self._observe(cycle, "request_slo_violation", 1, type=target.value)

    # --- together with peers ----------------------------------------------------------------------------------------

    def _note(self, what: str, endpoint_id: str, *times_s: float) -> None:
        """For the slow start: `answers`, `answered` or `failed`. Peers are told what was news."""
        if getattr(self._slow_start, what)(endpoint_id, *times_s) and self.tell is not None:
            self.tell((what, endpoint_id, times_s))

    def _tell_lowest(self, endpoint_id: str) -> None:
        if self.tell is not None:
            self.tell(("target", endpoint_id, self._targets.own_lowest_ms(endpoint_id)))

    def absorb(self, change: Any, peer: int, snapshot: Snapshot) -> None:
        self._follow(snapshot)
        what, endpoint_id, value = change
        match what:
            case "target":
                self._targets.peer_lowest(peer, endpoint_id, value)
            case "remembered":
                self._slow_start.recall(endpoint_id, value)
            case "answers" | "answered" | "failed":
                getattr(self._slow_start, what)(endpoint_id, *value)

    def known(self) -> Iterator[Any]:
        for endpoint_id, remembered in self._slow_start.remembered():
            yield "remembered", endpoint_id, remembered

    def forget_peer(self, peer: int) -> None:
        self._targets.forget_peer(peer)

    # --- telling ----------------------------------------------------------------------------------------------------

    def dump_state(self) -> Mapping[str, Any]:
        lowest = sorted(self._targets.lowest_ms().items(), key=lambda item: item[1])
        return {
            "predictor": None if self._predictor is None else self._predictor.state(self._now_s),
            "predictions_to_skip": self._budget.to_skip,
            "slow_start": self._slow_start.state(),
            "lowest_tpot_target_ms": dict(lowest[:_DUMPED_ENDPOINTS]),
        }

    def _observe(self, cycle: Cycle, family: str, value: float, **labels: str) -> None:
        cycle.observations.append(Observation(family, float(value), self.name, self.plugin_type, tuple(labels.items())))


def _passed_over(decision: Decision, answering: str) -> list[str]:
    """Of the choice and its fallbacks those before the one that answers; of an answer of somebody else the choice."""
    asked = [endpoint.id for endpoint in decision.endpoints]
    return asked[: asked.index(answering)] if answering in asked else asked[:1]
