"""A continuous-batching inference engine in virtual time: what vLLM's scheduler does, without a model.

The engine works in steps. A step starts as soon as there is work and the last one has ended; the scheduler says who
computes how many tokens in it, and the step law how long that takes. At its end each sequence whose tokens are all
computed has produced one more.

Time is whatever the caller says it is. `submit`, `abort` and `advance` take seconds that never go back; chance comes
from the `rng` given. So the engine runs behind a real HTTP server as well as in a lab that simulates hours in seconds.

What always holds, and the tests check:

1. KV blocks are conserved: free + held = total; an engine without requests holds none.
2. No request is lost: each accepted one ends exactly once, with its last token or by `abort`.
3. Each request's tokens come in order, each exactly once, as many as were asked for.
4. Time is monotone: events come in order of time, never later than `advance` was asked for, never before the request.
5. At most `max_sequences` requests run, and at most `max_waiting` more are in the engine: when every slot is taken, no
   more than `max_waiting` wait.
"""

import heapq
import random
from dataclasses import replace
from itertools import count

from epp.sim.config import EngineConfig
from epp.sim.scheduler import Scheduler, Step, adapters_of
from epp.sim.sequence import Sequence
from epp.sim.types import Admission, EngineMetrics, SimRequest, TokenEvent


class Engine:
    """One engine. See the module's text for the rules; all times are seconds on the caller's clock."""

    def __init__(self, config: EngineConfig, rng: random.Random, *, every_token: bool = True) -> None:
        """Without `every_token`, `advance` tells of each request's first and last token only, for much less work."""
        self.config = config
        self.slow_factor = 1.0  # every step takes this many times longer
        self.busy_s = 0.0  # what all steps took that were begun
        self._every_token = every_token
        self._rng = rng
        self._totals = EngineMetrics()
        self.scheduler = Scheduler(config, self._totals)  # to be looked at, not touched
        self._live: dict[str, Sequence] = {}
        self._arriving: list[tuple[float, int, Sequence]] = []  # a heap by the time each is ready
        self._arrivals = count()
        self._step: Step | None = None  # what is now being computed
        self._step_end_s = 0.0

    def submit(self, request: SimRequest, now_s: float) -> Admission:
        """Take a request in, or say why not. Raises ValueError if its id is in the engine already."""
        if request.id in self._live:
            raise ValueError(f"request id {request.id!r} is already in the engine")
        if request.prompt_tokens + request.output_tokens > self.config.longest_tokens:
            return Admission.TOO_LONG
        if len(self._live) >= self.config.max_sequences + self.config.max_waiting:
            self._totals.rejected_total += 1
            return Admission.QUEUE_FULL
        sequence = Sequence(request)
        self._live[request.id] = sequence
        ready_s = now_s + self._rng.uniform(*self.config.overhead_ms) / 1000.0
        heapq.heappush(self._arriving, (ready_s, next(self._arrivals), sequence))
        return Admission.ACCEPTED

    def abort(self, request_id: str) -> bool:
        """Forget a request: its slot and blocks are free at once. False if it is not (or no longer) here."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        self._totals.aborted_total += 1
        self.scheduler.remove(sequence)  # one that still arrives is passed over when it is ready
        return True

    @property
    def arriving(self) -> list[tuple[float, Sequence]]:
        """Requests that were taken in and are not ready to be scheduled yet, with the time at which they are."""
        return [(ready_s, sequence) for ready_s, _, sequence in sorted(self._arriving) if self._is_live(sequence)]

    def next_event_s(self) -> float | None:
        """When `advance` will next have something to do; `None` while the engine is empty."""
        if self._step is not None:
            return self._step_end_s
        return self._arriving[0][0] if self._arriving else None

    def advance(self, now_s: float) -> list[TokenEvent]:
        """Run until `now_s` and return the tokens produced by then, in order of time."""
        events: list[TokenEvent] = []
        while True:
            if self._step is not None:
                if self._step_end_s > now_s:
                    break
                if self._goes_on():
                    continue
                self._finish_step(events)
                start_s = self._step_end_s
            elif self._arriving and self._arriving[0][0] <= now_s:
                start_s = self._arriving[0][0]
            else:
                break
            if self._arriving:
                self._arrive(start_s)
            self._start_step(start_s)
        if self._arriving:
            self._arrive(now_s)
        return events

    def gauges(self) -> tuple[int, int, float]:
        """Running, waiting, and the share of the KV cache in use, as of the last `advance`: cheaper than `metrics`."""
        scheduler = self.scheduler
        return len(scheduler.running), len(scheduler.waiting), scheduler.kv.usage_ratio

    def metrics(self) -> EngineMetrics:
        """A copy of the counters, and the gauges as of the last `advance`."""
        scheduler = self.scheduler
        return replace(
            self._totals,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage_ratio=scheduler.kv.usage_ratio,
            running_adapters=adapters_of(scheduler.running),
            waiting_adapters=adapters_of(scheduler.waiting),
        )

    # --- one step -----------------------------------------------------------------------------------------------

    def _arrive(self, now_s: float) -> None:
        while self._arriving and self._arriving[0][0] <= now_s:
            sequence = heapq.heappop(self._arriving)[2]
            if self._is_live(sequence):
                self.scheduler.waiting.append(sequence)

    def _is_live(self, sequence: Sequence) -> bool:
        return self._live.get(sequence.request.id) is sequence

    def _goes_on(self) -> bool:
        """Whether the step that is over is followed by one like it, of which there is nothing to tell: then by that."""
        step = self._step
        if step is None or self._every_token or (self._arriving and self._arriving[0][0] <= self._step_end_s):
            return False
        decoded = self.scheduler.decoders.count
        if not self.scheduler.goes_on(step):
            return False
        self._totals.generation_tokens_total += decoded
        self._begin(step, self._step_end_s)
        return True

    def _start_step(self, start_s: float) -> None:
        step = self._step = self.scheduler.schedule()
        if step is not None:
            self._begin(step, start_s)

    def _begin(self, step: Step, start_s: float) -> None:
        config = self.config
        noise = self._rng.lognormvariate(0.0, config.noise_sigma)
        step_ms = config.hardware.step_ms(
            step.prefill_tokens, step.decoding + len(step.prefills), step.attention_pairs, step.context_tokens
        )
        step_s = step_ms * noise * self.slow_factor / 1000.0
        self.busy_s += step_s
        self._step_end_s = start_s + step_s

    def _finish_step(self, events: list[TokenEvent]) -> None:
        step = self._step
        if step is None:
            return
        scheduler = self.scheduler
        decoded = scheduler.decoders.count
        ended, computed = scheduler.finish(step)
        self._totals.generation_tokens_total += decoded + len(computed)
        if self._every_token:
            new, gone = set(computed), set(ended)
            ended = [s for s in scheduler.running if s in gone or (s.decoding_since is not None and s not in new)]
        for sequence in ended:
            self._tell(sequence, events)
        for sequence in computed:
            self._tell(sequence, events)

    def _tell(self, sequence: Sequence, events: list[TokenEvent]) -> None:
        """Of its newest token; after the last one it is gone."""
        request = sequence.request
        produced = self.scheduler.decoders.produced_tokens(sequence)
        last = produced == request.output_tokens
        events.append(TokenEvent(request.id, self._step_end_s, produced - 1, last, sequence.cached_tokens or 0))
        if last:
            del self._live[request.id]
            self.scheduler.remove(sequence)
            self._totals.finished_total += 1
