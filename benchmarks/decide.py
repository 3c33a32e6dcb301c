"""What a decision costs: CPU of everything the director does for a request, without Envoy and without a front.

    python -m benchmarks.decide [--quick] [--json FILE]

The picker is built as `epp serve` builds it: configuration, metrics, decision record, plugins timed. A request is
read, decided, begins to answer, gives its first token and ends; so all that is learned from it is in the figures, too.
Requests are chats that share the first half of their prompt with others. p50 and p99 are CPU time of single requests.

    python -m benchmarks.decide --stages              # only where the time goes
    python -m benchmarks.decide --profile headroom    # only what this one costs
"""

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from prometheus_client import CollectorRegistry

from benchmarks import predict
from benchmarks._report import add_json_option, heading, medians, table, write
from epp.config.build import build_pipeline
from epp.config.builtins import BUILT_INS
from epp.config.defaults import DEFAULT_CONFIG
from epp.config.resolve import load_config
from epp.director import Arrival, Assignment, Director
from epp.endings import EndCause
from epp.inference.apis import Parsers
from epp.inference.parse import parse_request
from epp.inference.request import Api, Request, Usage
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.training import train
from epp.ledger import Ledger
from epp.observe.metrics import Metrics
from epp.observe.observer import RequestObserver
from epp.observe.records import DecisionRing
from epp.plugins.approx_prefix_cache_producer import MIN_BLOCK_SIZE_TOKENS
from epp.pool.snapshot import EndpointSignals
from epp.pool.static import parse_endpoints
from epp.pool.store import PoolStore
from epp.prefix.hashing import block_hashes
from epp.prefix.index import PrefixIndex
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry
from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG

RANDOM_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
"""

PROFILES = {
    "random": RANDOM_CONFIG,
    "llm-d-default": DEFAULT_CONFIG,
    "predicted-latency": PREDICTED_LATENCY_CONFIG,
    "headroom": BUILT_INS["headroom"].text,
}
OLD_NAMES = {"default": "llm-d-default", "predicted latency": "predicted-latency"}  # of profiles, still taken
ENDPOINTS = (4, 10, 100, 1_000)
PROMPT_BYTES = (0, 1_000, 32_000, 400_000, 1_000_000)
TARGET_US = {  # (profile, endpoints, prompt bytes): of the median, but for the last
    ("llm-d-default", 10, 1_000): 65.0,
    ("llm-d-default", 1_000, 1_000): 150.0,
    ("llm-d-default", 10, 400_000): 1000.0,
    ("predicted-latency", 10, 1_000): 210.0,
}
TARGET_P99_US = {("predicted-latency", 100, 1_000): 1000.0, ("headroom", 100, 1_000): 1000.0}

PATH = "/v1/chat/completions"
HEADERS = {
    ":method": "POST",
    ":path": PATH,
    ":authority": "llm.example.com",
    ":scheme": "http",
    "content-type": "application/json",
    "accept": "application/json",
    "user-agent": "OpenAI/Python 1.99.1",
    "x-forwarded-proto": "http",
    "x-request-id": "2b0ddf1c-9b0e-4a9e-8d43-4f8d6c8a1f43",
    "x-slo-ttft-ms": "500",
    "x-slo-tpot-ms": "50",
}
ANSWER_HEADERS = {":status": "200", "content-type": "text/event-stream"}
USAGE = Usage(prompt_tokens=250, completion_tokens=20, cached_tokens=0)
WORDS = ("alpha", "beta", "gamma", "delta", "request", "pool", "server", "the", "a", "to", "of", "and")
GROUPS, BODIES = 8, 64
KEPT_CHAINS = 32  # of the stage that enters into a full index


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Picker:
    """All of a picker but its servers and its front."""

    def __init__(self, profile: str, endpoints: int, prompt_bytes: int) -> None:
        self.clock, self.ledger, self.store = Clock(), Ledger(), PoolStore()
        self.store.replace(parse_endpoints(",".join(f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(endpoints))))
        self._rng = random.Random(1)
        for endpoint in self.store.snapshot().endpoints:
            self.report(endpoint.id)
        self.predictor = Predictor(PredictorOptions())
        config = load_config(
            PROFILES[profile],
            filename=profile,
            registry=Registry.discover("epp.plugins"),
            services=Services(ledger=self.ledger, predictor=self.predictor, timer=time.perf_counter),
            allow_experimental=True,
        )
        metrics = Metrics(
            CollectorRegistry(),
            pool_name="pool",
            snapshot=self.store.snapshot,
            ledger=self.ledger,
            clock=self.clock,
        )
        self.observer = RequestObserver(metrics, DecisionRing(), self.clock)
        self.pipeline = build_pipeline(config, metrics.plugins, time.perf_counter)
        self.director = Director(
            self.pipeline,
            Parsers([parser.plugin_type for parser in config.parsers]),
            self.ledger,
            self.store.snapshot,
            self.observer,
            clock=self.clock,
            rng=random.Random(7),
        )
        self.bodies = itertools.cycle(chats(prompt_bytes))

    def report(self, endpoint_id: str) -> None:
        """A scrape of this server, now."""
        rng = self._rng
        signals = EndpointSignals(
            waiting_requests=float(rng.randrange(4)),
            running_requests=float(rng.randrange(50)),
            kv_cache_usage_ratio=rng.random(),
            kv_block_size_tokens=16,
            kv_blocks=27_000,
            scraped_at_s=self.clock.now_s,
            restarts=0,
        )
        self.store.update_signals(endpoint_id, signals)

    def arrival(self) -> Arrival:
        return Arrival(HEADERS, next(self.bodies), True, True, None, self.clock.now_s)

    def decide(self) -> Assignment:
        assignment = self.director.decide(self.arrival())
        assert isinstance(assignment, Assignment)
        return assignment

    def finish(self, assignment: Assignment) -> None:
        """It answers after a while, with a stream."""
        director, clock = self.director, self.clock
        director.response_started(assignment, 200, ANSWER_HEADERS, assignment.decision.endpoints[0].address)
        clock.now_s += 1e-4
        director.first_token(assignment)
        clock.now_s += 1e-4
        director.end(assignment, EndCause.NATURAL, USAGE)
        clock.now_s -= 2e-4  # so that signals do not grow old

    def request(self) -> None:
        self.finish(self.decide())


def chats(prompt_bytes: int) -> list[bytes]:
    rng = random.Random(3)
    systems = [f"{group} {' '.join(rng.choices(WORDS, k=prompt_bytes // 12))}" for group in range(GROUPS)]
    bodies = []
    for i in range(BODIES if prompt_bytes < 100_000 else GROUPS):
        question = f"{i} {' '.join(rng.choices(WORDS, k=prompt_bytes // 12))}"
        messages = [{"role": "system", "content": systems[i % GROUPS]}, {"role": "user", "content": question}]
        chat = {"model": "llama-3.1-8b", "stream": True, "max_tokens": 200, "temperature": 0.7, "messages": messages}
        bodies.append(orjson.dumps(chat))
    return bodies


def warm(profile: str, endpoints: int, prompt_bytes: int, trained: Any) -> Picker:
    """A picker that has answered so much that nothing is new to it; latency is predicted by trees."""
    picker = Picker(profile, endpoints, prompt_bytes)
    for _ in range(600 if prompt_bytes < 100_000 else 2 * GROUPS):
        picker.request()
    if profile == "predicted-latency" and not picker.predictor.publish(trained):
        raise SystemExit("training found no better model: nothing to time")
    for _ in range(100 if prompt_bytes < 100_000 else GROUPS):
        picker.request()
    return picker


def measure(picker: Picker, rounds: int, each_s: float, *, read_between: bool = False) -> list[float]:
    """CPU µs of single requests, over so many rounds. `read_between`: each request sees new signals of one server."""
    taken: list[float] = []
    ids = itertools.cycle([endpoint.id for endpoint in picker.store.snapshot().endpoints])
    for _ in range(rounds):
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < each_s:
            if read_between:
                picker.report(next(ids))
            start_ns = time.thread_time_ns()
            picker.request()
            taken.append((time.thread_time_ns() - start_ns) / 1e3)
    return taken


def whole_table(cases: list[tuple[str, int, int]], rounds: int, each_s: float, trained: Any) -> list[dict[str, Any]]:
    rows = []
    for number, case in enumerate(cases):
        print(f"\r{number + 1} of {len(cases)}: {case[0]}, {case[1]} endpoints", end="\033[K", file=sys.stderr)
        picker = warm(*case, trained)
        taken, moving = measure(picker, rounds, each_s), measure(picker, rounds, each_s, read_between=True)
        rows.append(
            {
                "profile": case[0],
                "endpoints": case[1],
                "prompt bytes": case[2],
                "p50 µs": statistics.median(taken),
                "p99 µs": float(np.percentile(taken, 99)),
                "p50, new signals each": statistics.median(moving),
                "p99, new signals each": float(np.percentile(moving, 99)),
                "target p50": TARGET_US.get(case),
                "target p99": TARGET_P99_US.get(case),
            }
        )
    print(file=sys.stderr)
    return rows


def stages(picker: Picker) -> Iterator[tuple[str, Callable[[], object]]]:
    """The steps of a request, each to be called on its own with what those before it made."""
    body = next(picker.bodies)
    request = parse_request(Api.CHAT, body, HEADERS, id="stage", path=PATH)
    assert isinstance(request, Request)
    candidates = Candidates.all_of(picker.store.snapshot())

    def cycle() -> Cycle:
        return Cycle(request=request, now_s=picker.clock.now_s, rng=random.Random(1), received_s=picker.clock.now_s)

    produced = cycle()
    picker.pipeline.produce(produced, candidates)
    decision = picker.pipeline.schedule(produced, candidates)
    assert isinstance(decision, Decision)
    prompt = request.prompts[0].parts[0]
    assert isinstance(prompt, bytes)
    index, snapshot = PrefixIndex(1 << 28), candidates.snapshot
    hashes = block_hashes(prompt, b"seed", 4 * MIN_BLOCK_SIZE_TOKENS)
    index.insert(snapshot.endpoints[0].id, hashes, 10_000)
    # Chains that are new whenever their turn comes: a full index has dropped them meanwhile, and drops as many again.
    chains = itertools.cycle([[block ^ number for block in hashes] for number in range(1, 1 + 2 * KEPT_CHAINS)])

    def enter() -> None:
        index.insert(snapshot.endpoints[1].id, next(chains), KEPT_CHAINS * len(hashes))

    for _ in range(KEPT_CHAINS):
        enter()

    def reserve() -> None:
        picker.ledger.reserve("stage", snapshot.endpoints[0].id, prefill_tokens=250)
        picker.ledger.release("stage")

    def chosen() -> None:
        produced.state.clear()
        picker.pipeline.produce(produced, candidates)
        picker.pipeline.pre_request(produced, decision)

    def counted() -> None:
        picker.observer.request_routed(request, decision, produced, 1e-4)

    yield "parse", lambda: parse_request(Api.CHAT, body, HEADERS, id="stage", path=PATH)
    yield "hash", lambda: block_hashes(prompt, b"seed", 4 * MIN_BLOCK_SIZE_TOKENS)
    yield "index: look up", lambda: index.match(hashes, snapshot)
    yield "index: enter, and drop as many", enter
    yield "producers (hash and index in it)", lambda: picker.pipeline.produce(cycle(), candidates)
    yield "filters, scorers, picker", lambda: picker.pipeline.schedule(produced, candidates)
    yield "reserve and release", reserve
    yield "producers and what follows a choice", chosen
    yield "record and metrics of a decision", counted
    yield "all until the reply", lambda: picker.director.end(picker.decide(), EndCause.CLIENT_GONE, Usage())
    yield "the whole request", picker.request


def stage_table(rounds: int, trained: Any) -> list[Mapping[str, object]]:
    """µs of CPU, the stages in turns; each called many times in a row, so with warmer caches than in a request."""
    columns: dict[str, dict[str, float]] = {}
    for profile in ("llm-d-default", "predicted-latency"):
        picker = warm(profile, 10, 1_000, trained)
        calls = dict(stages(picker))
        taken = medians({name: lambda call=call: cpu_us(call) for name, call in calls.items()}, rounds)
        columns[profile] = {name: figure.median for name, figure in taken.items()}
    return [{"stage": name, **{p: columns[p][name] for p in columns}} for name in columns["llm-d-default"]]


def cpu_us(call: Callable[[], object], calls: int = 100) -> float:
    start_ns = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - start_ns) / 1e3 / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases that have a target, in half a minute")
    parser.add_argument("--stages", action="store_true", help="only the stages")
    parser.add_argument(
        "--profile",
        type=lambda name: OLD_NAMES.get(name, name),
        choices=PROFILES,
        help="only the table of this one, named as for `epp serve` (default: stages, and all)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="(default: 10)")
    add_json_option(parser)
    options = parser.parse_args()
    if options.stages and options.profile:
        parser.error("--stages is the table that --profile leaves out: give one of them")
    trained = train(predict.job(predict.rows(np.random.default_rng(0), 3_000)))

    print(heading("numpy", "orjson"))
    by_stage: list[Mapping[str, object]] = []
    if options.profile is None:
        by_stage = stage_table(options.rounds, trained)
        print("\nµs of CPU by stage: 10 endpoints, chats of 1 KB\n")
        print(table(by_stage))
    whole: list[dict[str, Any]] = []
    if not options.stages:
        cases = [(profile, endpoints, 1_000) for profile in PROFILES for endpoints in ENDPOINTS]
        cases += [(profile, 10, size) for profile in (*PROFILES,)[1:] for size in PROMPT_BYTES]
        cases = [case for case in dict.fromkeys(cases) if not options.quick or case in {*TARGET_US, *TARGET_P99_US}]
        cases = [case for case in cases if options.profile in (None, case[0])]
        whole = whole_table(cases, options.rounds, 0.1 if options.quick else 0.2, trained)
        print("\nµs of CPU per request, from its parse to its end\n")
        print(table(whole))
    write({"stages": by_stage, "whole": whole}, options.json, "numpy", "orjson")


if __name__ == "__main__":
    main()
