"""The picker without a network: a real pipeline, ledger and metrics, with a clock and a seed that a test owns."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from envoy_messages import FULL_DUPLEX, Modes, reply, request_body, request_headers
from prometheus_client import CollectorRegistry

from epp.config.build import build_pipeline
from epp.config.defaults import DEFAULT_CONFIG
from epp.config.resolve import load_config
from epp.director import Director, DirectorOptions
from epp.inference.apis import Parsers
from epp.ledger import Ledger
from epp.observe.metrics import Metrics
from epp.observe.observer import RequestObserver
from epp.observe.records import DecisionRing
from epp.observe.trace import TraceRecorder
from epp.plugins.approx_prefix_cache_producer import ApproxPrefixCacheProducer
from epp.pool.snapshot import EndpointSignals
from epp.pool.static import parse_endpoints
from epp.pool.store import PoolStore
from epp.scheduling.plugin import LatencyPredictor, Services
from epp.scheduling.registry import Registry
from epp.server.access_log.awaiting import AccessLog
from epp.server.deadlines import Deadlines
from epp.server.exchange import Exchange, ExchangeOptions
from epp.server.watching import PaceBudget, Watching
from epp.wire.conversation import Limits

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
IDLE = EndpointSignals(waiting_requests=0.0, running_requests=0.0, kv_cache_usage_ratio=0.0)

THREE_ADDRESSES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: prefix-cache-scorer
  - pluginRef: max-score-picker
"""


@dataclass
class Timer:
    at_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Clock:
    now_s: float = 1000.0
    timers: list[Timer] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.at_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer.at_s > self.now_s]
        for timer in due:
            if not timer.cancelled:
                timer.call()

    @property
    def pending(self) -> int:
        return sum(not timer.cancelled for timer in self.timers)


@dataclass
class FakeStream:
    sent: list[bytes] = field(default_factory=list)
    finished: bool = False
    put_off: list[Callable[[], None]] = field(default_factory=list)

    def send(self, replies: Sequence[bytes]) -> None:
        self.sent.extend(replies)

    def finish(self) -> None:
        self.finished = True

    def afterwards(self, action: Callable[[], None]) -> None:
        self.put_off.append(action)


class Talk:
    """One stream: what Envoy sends goes in; `replies` is all that came out, in order."""

    def __init__(self, world: "World", options: ExchangeOptions) -> None:
        self.stream = FakeStream()
        self.exchange = Exchange(
            self.stream, world.director, options, world.watching, clock=world.clock, deadlines=world.deadlines
        )
        self._replies: list[bytes] = []

    @property
    def replies(self) -> list[Any]:
        return [reply(data) for data in (*self._replies, *self.stream.sent)]

    def send(self, *messages: bytes) -> "Talk":
        for message in messages:
            self._replies += self.exchange.receive(message)
            while self.stream.put_off:
                self.stream.put_off.pop(0)()
        return self

    def close(self, *, cancelled: bool = False, lost: bool = False) -> None:
        self.exchange.closed(cancelled=cancelled, lost=lost)


class World:
    """One picker for the pool `ADDRESSES`, all of it idle and freshly scraped unless a test says otherwise."""

    def __init__(
        self,
        config_text: str = DEFAULT_CONFIG,
        *,
        seed: int = 7,
        director: DirectorOptions | None = None,
        max_request_body_bytes: int = 1 << 20,
        watched_to_the_end: bool = False,
        predictor: LatencyPredictor | None = None,
        trace: TraceRecorder | None = None,
    ) -> None:
        self.clock = Clock()
        self.ledger = Ledger()
        self.store = PoolStore()
        self.reset_pool()
        self.config = load_config(
            config_text,
            filename="test",
            registry=Registry.discover("epp.plugins"),
            services=Services(ledger=self.ledger, predictor=predictor),
            allow_experimental=True,
        )
        self.registry = CollectorRegistry()
        self.metrics = Metrics(
            self.registry, pool_name="pool", snapshot=self.store.snapshot, ledger=self.ledger, clock=self.clock
        )
        self.ring = DecisionRing()
        self.director = Director(
            build_pipeline(self.config, self.metrics.plugins),
            Parsers([parser.plugin_type for parser in self.config.parsers]),
            self.ledger,
            self.store.snapshot,
            RequestObserver(self.metrics, self.ring, self.clock, trace),
            clock=self.clock,
            rng=random.Random(seed),
            options=director,
        )
        self._options = ExchangeOptions(limits=Limits(max_request_body_bytes=max_request_body_bytes))
        self.deadlines = Deadlines(60.0, self.clock, self.clock.call_later)
        counted = self.metrics.access_log
        self.access_log = AccessLog("world", counted, clock=self.clock, call_later=self.clock.call_later)
        self.watching = Watching(self.access_log, counted, PaceBudget(self.clock), lambda: watched_to_the_end)
        for address in ADDRESSES:
            self.report(address, IDLE)

    def reset_pool(self) -> None:
        self.store.replace(parse_endpoints(",".join(ADDRESSES)))

    def report(self, address: str, signals: EndpointSignals) -> None:
        """A scrape of this server, now."""
        known = (signals.waiting_requests, signals.running_requests, signals.kv_cache_usage_ratio)
        self.store.update_signals(self.id_of(address), EndpointSignals(*known, scraped_at_s=self.clock.now_s))

    def id_of(self, address: str) -> str:
        snapshot = self.store.snapshot()
        return snapshot.endpoints[snapshot.row_by_address[address]].id

    def open(self) -> Talk:
        return Talk(self, self._options)

    def post(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        modes: Modes = FULL_DUPLEX,
        subset: str | None = None,
    ) -> Talk:
        """A stream whose request has come whole."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        head = {":method": "POST", ":path": path, "content-type": "application/json", **(headers or {})}
        return self.open().send(request_headers(head, modes=modes, subset=subset), request_body(data))

    def get(self, path: str = "/v1/models") -> Talk:
        return self.open().send(request_headers({":method": "GET", ":path": path}, end=True))

    def held(self) -> list[int]:
        """Requests in flight on each of `ADDRESSES`, by the ledger."""
        return [self.ledger.in_flight(self.id_of(address)).requests for address in ADDRESSES]

    def prefix_blocks(self) -> dict[str, int]:
        """Blocks in the prefix index, by endpoint id."""
        for plugin in self.config.plugins:
            if isinstance(plugin, ApproxPrefixCacheProducer):
                return dict(plugin.dump_state()["blocks_by_endpoint"])
        raise LookupError("the configuration has no prefix index")

    def count(self, name: str, **labels: str) -> float:
        """Sum over the series of this metric that have these labels."""
        return sum(
            sample.value
            for family in self.registry.restricted_registry([name]).collect()
            for sample in family.samples
            if all(sample.labels.get(k) == v for k, v in labels.items())
        )

    def series(self) -> int:
        """How many the families have in all. A page of them, which says the same, takes seconds when they are many."""
        return sum(len(family.children) for family in self.metrics.families.by_name.values())

    def ends(self) -> dict[str, int]:
        """How requests ended, by cause."""
        return {
            sample.labels["cause"]: int(sample.value)
            for family in self.registry.restricted_registry(["llm_d_epp_request_end_total"]).collect()
            for sample in family.samples
            if sample.value
        }

    def timers_left(self) -> int:
        """What is still to happen by itself. The timer of deadlines goes on until it finds none."""
        return self.clock.pending - self.deadlines.armed + len(self.deadlines)

    def assert_nothing_is_left(self) -> None:
        assert (self.ledger.open_streams(), any(self.ledger.totals())) == (0, False)
        assert self.held() == [0, 0, 0]
        assert self.count("llm_d_epp_request_running") == 0
        assert self.timers_left() == 0
