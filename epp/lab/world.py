"""The picker and a pool of simulated engines in one process and in virtual time.

Everything that decides and learns is the real thing: configuration, pipeline, director, ledger, plugins, predictor.
What stands in for the rest of the world is this file: one engine per server, a metrics page per server that is read
every 50 to 100 ms and is as stale as that, and requests that come by a schedule, read already: parsing JSON decides
nothing. Training happens when it is due, at once; its result is served after a delay, as if a process of its own had
worked on it.

Happenings are dealt with strictly in order of virtual time, and chance comes from one seed: the same experiment gives
the same numbers, however fast the machine is. Engines work ahead on their own until the next happening; a heap says
which of them have anything to do by then.
"""

import heapq
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from epp.config.build import build_pipeline
from epp.config.resolve import load_config
from epp.director import Arrival, Director, Refusal
from epp.endings import EndCause
from epp.inference.apis import Parsers
from epp.inference.request import Api, Prompt, Request, Usage
from epp.lab.experiment import (
    Change,
    Dies,
    Experiment,
    Fails,
    Joins,
    LabRequest,
    LabResult,
    LabServer,
    Leaves,
    Recovers,
    Restarts,
    Served,
    Slows,
)
from epp.lab.metrics_pages import MetricsPages
from epp.lab.prompts import BlockHashes, text_of, tokens_of
from epp.lab.servers import Live, Server
from epp.lab.stand_ins import Failures, NoObserver, Witness
from epp.latency.jobs import TrainedModel
from epp.latency.training import train
from epp.latency.types import Target
from epp.ledger import Ledger
from epp.pool.store import PoolStore
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry
from epp.sim.types import Admission, SimRequest, TokenEvent

MODEL = "llama-3.1-8b"
PATH = "/v1/completions"
LOOK_FOR_TRAINING_S = 1.0
ERROR_AFTER_S = 0.002
_STREAM = {"content-type": "text/event-stream"}
_JSON = {"content-type": "application/json"}
_ADMITTED = {Admission.ACCEPTED: 200, Admission.QUEUE_FULL: 503, Admission.TOO_LONG: 400}


def run(experiment: Experiment) -> LabResult:
    """Run until the last request has ended. Raises `ConfigError`."""
    return World(experiment).run()


class World:
    """One run. What may be seen of it from outside is for the oracle; see `epp.lab.oracle`.

    Attributes:
        now_s: virtual time.
        served: every request that has arrived.
        servers: by name; also those that have left the pool.
        arriving: the request of the decision that is being made.
        block_hashes: what engines know of prompts.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.now_s = 0.0
        self.servers: dict[str, Server] = {}
        self.served: list[Served] = []
        self.arriving: LabRequest | None = None
        self.block_hashes = BlockHashes()
        self._rng = random.Random(experiment.seed)
        self._store = PoolStore()
        self._pages = MetricsPages(self._store)
        self._predictor = Witness(experiment.predictor, experiment.quantiles)
        self._failures = Failures()
        ledger = Ledger()
        config = load_config(
            experiment.config_text,
            filename=experiment.config_name,
            registry=Registry((*_known(Registry.discover()), *experiment.plugins)),
            services=experiment.services_of(Services(ledger=ledger, predictor=self._predictor), self),
        )
        self._director = Director(
            build_pipeline(config, self._failures),
            Parsers([parser.plugin_type for parser in config.parsers]),
            ledger,
            self._pages.snapshot,
            NoObserver(),
            clock=lambda: self.now_s,
            rng=random.Random(self._rng.getrandbits(64)),
        )
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []  # a heap: when, in which order, what
        self._due: list[tuple[float, int, Server]] = []  # a heap: when an engine has something to do
        self._order = count()
        self._open = 0
        self._published_s: list[float] = []
        for server in experiment.servers:
            self._join(server)
        for change in experiment.changes:
            self._at(change.at_s, partial(self._change, change))
        self._at(LOOK_FOR_TRAINING_S, self._look_for_training)
        self._plan_next(iter(experiment.schedule))

    def run(self) -> LabResult:
        """To its end."""
        self.run_until(math.inf)
        return self.result()

    def run_until(self, until_s: float) -> bool:
        """Go on up to a time. True once the last request has ended: the run is over."""
        agenda, requests = self._agenda, len(self._experiment.schedule)
        while agenda and (len(self.served) < requests or self._open):
            if agenda[0][0] > until_s:
                return False
            at_s, _, happen = heapq.heappop(agenda)
            self._advance(at_s)
            self.now_s = at_s
            happen()
        return True

    def result(self) -> LabResult:
        """What has come of it so far."""
        return LabResult(
            tuple(self.served),
            tuple(self._published_s),
            dict(self._failures.by_type),
            {name: server.busy_s for name, server in self.servers.items()},
            sum(server.preemptions for server in self.servers.values()),
            self._predictor,
        )

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), happen))

    def _advance(self, until_s: float) -> None:
        """Let the engines work until then, and tell the picker of their tokens in the order in which they came."""
        due = self._due
        if not due or due[0][0] > until_s:
            return
        events: list[tuple[TokenEvent, Server]] = []
        while due and due[0][0] <= until_s:
            at_s, _, server = heapq.heappop(due)
            if at_s != server.due_s:
                continue  # it has since been given something earlier, or is another engine
            server.due_s = None
            events += [(event, server) for event in server.engine.advance(until_s) if event.last or not event.index]
            self._await(server)
        if len(events) > 1:
            events.sort(key=lambda pair: pair[0].time_s)
        for event, server in events:
            self.now_s = event.time_s
            self._on_token(event, server)

    def _await(self, server: Server) -> None:
        next_s = server.engine.next_event_s()
        if next_s is not None and (server.due_s is None or next_s < server.due_s):
            server.due_s = next_s
            heapq.heappush(self._due, (next_s, next(self._order), server))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _plan_next(self, schedule: Iterator[LabRequest]) -> None:
        planned = next(schedule, None)
        if planned is not None:
            self._at(planned.at_s, lambda: self._arrive(planned, schedule))

    def _arrive(self, planned: LabRequest, schedule: Iterator[LabRequest]) -> None:
        self._plan_next(schedule)
        number, prompt = len(self.served), text_of(planned.prompt)
        served = Served(number, self.now_s, streamed=planned.streaming, targets=planned.targets)
        served.prompt_tokens, served.output_tokens = tokens_of(planned.prompt), planned.output_tokens
        self.served.append(served)
        request = Request(
            id=f"stream-{number}",
            api=Api.COMPLETIONS,
            path=PATH,
            headers=planned.headers,
            model=MODEL,
            target_model=MODEL,
            streaming=planned.streaming,
            max_output_tokens=planned.max_output_tokens,
            prompts=(Prompt((prompt,)),),
            body_bytes=len(prompt),
        )
        self.arriving = planned
        arrival = Arrival(planned.headers, None, True, True, None, self.now_s)
        answer = self._director.decide_request(request, arrival, self.now_s)
        if isinstance(answer, Refusal):
            served.status, served.ended_s = answer.denial.status, self.now_s
            return
        endpoint = answer.decision.endpoints[0]
        served.server = endpoint.name
        served.note = str(next(iter(answer.cycle.notes.values()), ""))
        served.promised = self._predictor.take(endpoint.id)
        self._open += 1
        self._send(Live(served, answer, planned), self.servers[endpoint.name])

    def _send(self, live: Live, server: Server) -> None:
        served = live.served
        if not server.alive:
            status = 503
        elif server.failing:
            status = 500
        else:
            planned = live.planned
            text = planned.prompt if planned.answer is None else (*planned.prompt, planned.answer)
            hashes = self.block_hashes.of(text, server.spec.engine.block_tokens)
            request = SimRequest(str(served.number), served.prompt_tokens, served.output_tokens, hashes)
            status = _ADMITTED[server.engine.submit(request, self.now_s)]
            if status == 200:
                server.live[request.id] = live
                self._await(server)
                return
        self._at(self.now_s + ERROR_AFTER_S, lambda: self._refuse(live, status))

    def _refuse(self, live: Live, status: int) -> None:
        self._close(live, status)
        assignment = live.assignment
        self._director.response_started(assignment, status, _JSON, assignment.decision.endpoints[0].address)
        self._director.first_token(assignment)
        self._director.end(assignment, EndCause.NATURAL, Usage())

    def _break_off(self, server: Server) -> None:
        """All that runs there is lost."""
        for live in server.take_live():
            self._close(live, None)
            self._director.end(live.assignment, EndCause.UPSTREAM_ERROR, Usage())

    def _close(self, live: Live, status: int | None) -> None:
        live.served.status, live.served.ended_s = status, self.now_s
        self._open -= 1

    def _on_token(self, event: TokenEvent, server: Server) -> None:
        live = server.live.get(event.request_id)
        if live is None:
            return  # broken off since
        served, director = live.served, self._director
        if event.index == 0:
            live.first_token_s = self.now_s
            served.status = 200
            served.cached_tokens = event.cached_tokens
            headers = _STREAM if served.streamed else _JSON
            director.response_started(live.assignment, 200, headers, server.endpoint.address)
            if served.streamed:
                director.first_token(live.assignment)
        if not event.last:
            return
        del server.live[event.request_id]
        self._close(live, 200)
        director.first_token(live.assignment)  # of an answer in one piece it comes with the last
        director.end(
            live.assignment,
            EndCause.NATURAL,
            Usage(served.prompt_tokens, served.output_tokens, event.cached_tokens),
            served.output_tokens if served.streamed else 0,
        )
        if not served.streamed:
            served.actual_ms[Target.E2E] = (self.now_s - served.at_s) * 1e3
            return
        served.actual_ms[Target.TTFT] = (live.first_token_s - served.at_s) * 1e3
        if served.output_tokens > 1:
            served.actual_ms[Target.TPOT] = (self.now_s - live.first_token_s) * 1e3 / (served.output_tokens - 1)

    # --- the pool ---------------------------------------------------------------------------------------------------

    def _join(self, spec: LabServer) -> None:
        server = self.servers[spec.name] = Server(spec, self._new_rng())
        self._replace_pool()
        if self._experiment.metrics_interval_ms is not None:
            interval_s = self._rng.uniform(*self._experiment.metrics_interval_ms) / 1e3
            self._scrape(server, interval_s)

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _change(self, change: Change) -> None:
        if isinstance(change, Joins):
            self._join(change.server)
            return
        server = self.servers[change.server]
        match change:
            case Slows():
                server.engine.slow_factor = change.factor
            case Fails() | Recovers():
                server.failing = isinstance(change, Fails)
            case Dies():
                self._break_off(server)
                server.alive = False
            case Restarts():
                self._pages.tell()
                self._break_off(server)
                server.restart(self._new_rng())
                self._replace_pool()
            case Leaves():
                server.present = False
                self._replace_pool()

    def _replace_pool(self) -> None:
        self._pages.tell()
        self._store.replace(server.endpoint for server in self.servers.values() if server.present)

    def _scrape(self, server: Server, interval_s: float) -> None:
        if server.alive and server.present:
            self._pages.read(server, self.now_s)
        self._at(self.now_s + interval_s, lambda: self._scrape(server, interval_s))

    # --- training ---------------------------------------------------------------------------------------------------

    def _look_for_training(self) -> None:
        job = self._predictor.training_due(self.now_s)
        if job is None:
            self._at(self.now_s + LOOK_FOR_TRAINING_S, self._look_for_training)
            return
        trained = train(job)
        self._at(self.now_s + self._experiment.training_delay_s, lambda: self._publish(trained))

    def _publish(self, trained: TrainedModel) -> None:
        if self._predictor.publish(trained):
            self._published_s.append(self.now_s)
        self._at(self.now_s + LOOK_FOR_TRAINING_S, self._look_for_training)


def _known(registry: Registry) -> Iterator[type]:
    return iter(dict.fromkeys(plugin for name in registry if (plugin := registry.get(name)) is not None))
