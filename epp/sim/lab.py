"""The picker and a pool of simulated engines in one process and in virtual time.

Everything that decides and learns is the real thing: configuration, pipeline, director, ledger, plugins, predictor.
What stands in for the rest of the world is this file: one engine per server, a metrics page per server that is read
every 50 to 100 ms and is as stale as that, and requests that come by a schedule. Training happens when it is due, at
once; its result is served after a delay, as if a process of its own had worked on it.

Happenings are dealt with strictly in order of virtual time, and chance comes from one seed: the same experiment gives
the same numbers, however fast the machine is.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import orjson

from epp.config.build import build_pipeline
from epp.config.resolve import load_config
from epp.director import Arrival, Assignment, Director, Refusal
from epp.endings import EndCause
from epp.inference.apis import Parsers
from epp.inference.request import Request, Usage
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.training import TrainedModel, train
from epp.latency.types import Prediction, Situation, Target
from epp.ledger import Ledger, Outcome
from epp.pool.snapshot import EndpointSignals
from epp.pool.store import PoolStore
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.plugin import Plugin, Services
from epp.scheduling.registry import Registry
from epp.sim.engine import Engine
from epp.sim.experiment import (
    Change,
    Experiment,
    Fails,
    Joins,
    LabResult,
    LabServer,
    Leaves,
    Promised,
    Recovers,
    Served,
    Slows,
)
from epp.sim.service import APIS
from epp.sim.text import block_hashes, count_tokens
from epp.sim.types import Admission, SimRequest, TokenEvent
from epp.sim.workload import PlannedRequest

LOOK_FOR_TRAINING_S = 1.0
ERROR_AFTER_S = 0.002
_STREAM = {"content-type": "text/event-stream"}
_JSON = {"content-type": "application/json"}


def run(experiment: Experiment) -> LabResult:
    """Run until the last request has ended. Raises `ConfigError`."""
    return _Lab(experiment).run()


class _Witness(Predictor):
    """The predictor, and the bounds that it would have given of its last prediction."""

    def __init__(self, options: PredictorOptions, quantiles: Sequence[float]) -> None:
        super().__init__(options)
        self._quantiles = tuple(quantiles)
        self._last: Prediction | None = None
        self._bounded: dict[float, Prediction] = {}

    def predict(self, situation: Situation, *, quantile: float | None = None, e2e: bool = False) -> Prediction:
        self._last = super().predict(situation, quantile=quantile, e2e=e2e)
        self._bounded = {q: super(_Witness, self).predict(situation, quantile=q, e2e=e2e) for q in self._quantiles}
        return self._last

    def take(self, endpoint_id: str) -> dict[Target, Promised]:
        """What was last promised of this endpoint, once."""
        last, self._last = self._last, None
        if last is None or endpoint_id not in last.endpoint_ids:
            return {}
        row = list(last.endpoint_ids).index(endpoint_id)
        bounds = {q: prediction.promise(row).targets for q, prediction in self._bounded.items()}
        return {
            target: Promised(said.mean_ms, {q: targets[target].bound_ms for q, targets in bounds.items()}, said.source)
            for target, said in last.promise(row).targets.items()
        }


class _Failures:
    """Counts plugins that raise."""

    def __init__(self) -> None:
        self.by_type: dict[str, int] = {}

    def durations(self, extension_point: str, plugin: Plugin) -> Callable[[float], None]:
        return lambda seconds: None

    def failure(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        self.by_type[plugin.plugin_type] = self.by_type.get(plugin.plugin_type, 0) + 1


class _NoObserver:
    def request_routed(self, request: Request, decision: Decision, cycle: Cycle, seconds: float) -> None:
        pass

    def request_refused(self, request: Request | None, denial: Denial, cycle: Cycle | None, seconds: float) -> None:
        pass

    def chunk_gap(self, request: Request, seconds: float) -> None:
        pass

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        pass

    def plugins_observed(self, cycle: Cycle) -> None:
        cycle.observations.clear()


class _Server:
    """A server's engine and what else is true of it."""

    def __init__(self, spec: LabServer, rng: random.Random) -> None:
        self.spec = spec
        self.endpoint = spec.endpoint
        self.engine = Engine(spec.engine, rng)
        self.failing = False
        self.present = True


@dataclass(slots=True)
class _Live:
    """A request inside an engine."""

    served: Served
    assignment: Assignment
    server: _Server
    request: SimRequest
    first_token_s: float = 0.0


class _Lab:
    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._now_s = 0.0
        self._rng = random.Random(experiment.seed)
        self._store = PoolStore()
        self._predictor = _Witness(experiment.predictor, experiment.quantiles)
        self._failures = _Failures()
        ledger = Ledger()
        config = load_config(
            experiment.config_text,
            filename="lab",
            registry=Registry.discover(),
            services=Services(ledger=ledger, predictor=self._predictor),
        )
        self._director = Director(
            build_pipeline(config, self._failures),
            Parsers([parser.plugin_type for parser in config.parsers]),
            ledger,
            self._store.snapshot,
            _NoObserver(),
            clock=lambda: self._now_s,
            rng=random.Random(self._rng.getrandbits(64)),
        )
        self._servers: dict[str, _Server] = {}
        self._live: dict[str, _Live] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []  # a heap: when, in which order, what
        self._order = count()
        self._served: list[Served] = []
        self._published_s: list[float] = []

    def run(self) -> LabResult:
        experiment = self._experiment
        for server in experiment.servers:
            self._join(server)
        for change in experiment.changes:
            self._at(change.at_s, partial(self._change, change))
        self._at(LOOK_FOR_TRAINING_S, self._look_for_training)
        schedule = iter(experiment.schedule)
        self._plan_next(schedule)
        while self._agenda and (len(self._served) < len(experiment.schedule) or self._live):
            at_s, _, happen = heapq.heappop(self._agenda)
            self._advance(at_s)
            self._now_s = at_s
            happen()
        return LabResult(tuple(self._served), tuple(self._published_s), dict(self._failures.by_type), self._predictor)

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), happen))

    def _advance(self, until_s: float) -> None:
        """Let the engines work until then, and tell the picker of their tokens in the order in which they came."""
        events: list[TokenEvent] = []
        for server in self._servers.values():
            next_s = server.engine.next_event_s()
            if next_s is not None and next_s <= until_s:
                events += (e for e in server.engine.advance(until_s) if e.last or e.index == 0)
        for event in sorted(events, key=lambda e: e.time_s):
            self._now_s = event.time_s
            self._on_token(event)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _plan_next(self, schedule: Iterator[PlannedRequest]) -> None:
        planned = next(schedule, None)
        if planned is not None:
            self._at(planned.at_s, lambda: self._arrive(planned, schedule))

    def _arrive(self, planned: PlannedRequest, schedule: Iterator[PlannedRequest]) -> None:
        self._plan_next(schedule)
        served = Served(len(self._served), self._now_s, streamed=planned.streaming)
        self._served.append(served)
        answer = self._director.decide(
            Arrival(
                headers={":method": "POST", ":path": planned.path, **planned.headers},
                body=planned.body,
                body_complete=True,
                has_body=True,
                subset=None,
                received_s=self._now_s,
            )
        )
        if isinstance(answer, Refusal):
            served.status, served.ended_s = answer.denial.status, self._now_s
            return
        endpoint = answer.decision.endpoints[0]
        server = self._servers[endpoint.name]
        served.server = endpoint.name
        served.note = next(iter(answer.cycle.notes.values()), "")
        served.promised = self._predictor.take(endpoint.id)
        job = APIS[planned.path].parse(orjson.loads(planned.body))
        prompt, block_tokens = job.prompts[0], server.spec.engine.block_tokens
        request = SimRequest(
            str(served.number),
            count_tokens(prompt),
            job.max_output_tokens or 1,
            block_hashes(prompt, block_tokens, job.cache_salt),
        )
        status = 500 if server.failing else 200
        if status == 200:
            admission = server.engine.submit(request, self._now_s)
            status = {Admission.ACCEPTED: 200, Admission.QUEUE_FULL: 503, Admission.TOO_LONG: 400}[admission]
        if status == 200:
            self._live[request.id] = _Live(served, answer, server, request)
        else:
            self._at(self._now_s + ERROR_AFTER_S, lambda: self._refuse(served, answer, status))

    def _refuse(self, served: Served, assignment: Assignment, status: int) -> None:
        served.status, served.ended_s = status, self._now_s
        address = assignment.decision.endpoints[0].address
        self._director.response_started(assignment, status, _JSON, address)
        self._director.first_token(assignment)
        self._director.end(assignment, EndCause.NATURAL, Usage())

    def _on_token(self, event: TokenEvent) -> None:
        live = self._live[event.request_id]
        served, director = live.served, self._director
        if event.index == 0:
            live.first_token_s = self._now_s
            served.status = 200
            headers = _STREAM if served.streamed else _JSON
            director.response_started(live.assignment, 200, headers, live.server.endpoint.address)
            if served.streamed:
                director.first_token(live.assignment)
        if not event.last:
            return
        del self._live[event.request_id]
        request = live.request
        director.first_token(live.assignment)  # of an answer in one piece it comes with the last
        director.end(
            live.assignment,
            EndCause.NATURAL,
            Usage(request.prompt_tokens, request.output_tokens, event.cached_tokens),
            request.output_tokens if served.streamed else 0,
        )
        served.ended_s = self._now_s
        if not served.streamed:
            served.actual_ms[Target.E2E] = (self._now_s - served.at_s) * 1e3
            return
        served.actual_ms[Target.TTFT] = (live.first_token_s - served.at_s) * 1e3
        if request.output_tokens > 1:
            served.actual_ms[Target.TPOT] = (self._now_s - live.first_token_s) * 1e3 / (request.output_tokens - 1)

    # --- the pool ---------------------------------------------------------------------------------------------------

    def _join(self, spec: LabServer) -> None:
        server = _Server(spec, random.Random(self._rng.getrandbits(64)))
        self._servers[spec.name] = server
        self._replace_pool()
        self._scrape(server, self._rng.uniform(*self._experiment.metrics_interval_ms) / 1e3)

    def _change(self, change: Change) -> None:
        match change:
            case Joins():
                self._join(change.server)
            case Slows():
                self._servers[change.server].engine.slow_factor = change.factor
            case Fails() | Recovers():
                self._servers[change.server].failing = isinstance(change, Fails)
            case Leaves():
                self._servers[change.server].present = False
                self._replace_pool()

    def _replace_pool(self) -> None:
        self._store.replace(server.endpoint for server in self._servers.values() if server.present)

    def _scrape(self, server: _Server, interval_s: float) -> None:
        metrics = server.engine.metrics()
        signals = EndpointSignals(
            waiting_requests=float(metrics.waiting),
            running_requests=float(metrics.running),
            kv_cache_usage_ratio=metrics.kv_usage_ratio,
            kv_block_size_tokens=server.spec.engine.block_tokens,
            kv_blocks=server.spec.engine.kv_blocks,
            scraped_at_s=self._now_s,
        )
        self._store.update_signals(server.endpoint.id, signals)
        if server.present:
            self._at(self._now_s + interval_s, lambda: self._scrape(server, interval_s))

    # --- training ---------------------------------------------------------------------------------------------------

    def _look_for_training(self) -> None:
        job = self._predictor.training_due(self._now_s)
        if job is None:
            self._at(self._now_s + LOOK_FOR_TRAINING_S, self._look_for_training)
            return
        trained = train(job)
        self._at(self._now_s + self._experiment.training_delay_s, lambda: self._publish(trained))

    def _publish(self, trained: TrainedModel) -> None:
        if self._predictor.publish(trained):
            self._published_s.append(self._now_s)
        self._at(self._now_s + LOOK_FOR_TRAINING_S, self._look_for_training)
