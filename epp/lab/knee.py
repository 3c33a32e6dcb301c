"""The knee of a pool under a workload: how many requests per second it can answer at most.

All engines are kept busy by more requests than they can do, and what comes out per second is counted once the queues
stand. Each request is sent where the work that is left is least, its own included, by the true cost of it and the true
state of the caches. So this belongs to pool and workload, whatever a policy makes of them, and it is what a load of 1.0
means. It is no bound: a policy that keeps prefixes together better, or leaves long requests waiting, answers more.

Every arrival looks into every engine, so the time that takes grows by the square of the pool. Of a large pool it is the
knee of a smaller one of the same mix, times how much more the large one can do by the step law.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean, median

from epp.lab.experiment import LabRequest, LabServer
from epp.lab.prompts import BlockHashes, tokens_of
from epp.lab.workloads.workload import Clients, Workload, run_s_at, schedule
from epp.sim.engine import Engine
from epp.sim.timing import Hardware
from epp.sim.types import Admission, SimRequest

_SEED = 0
_OVERLOAD = 1.5
_SATURATED = 0.85  # of what arrived: fewer came out, so it was too much
_BATCH = 64  # for the first guess
_SAMPLE = 400
_WITHOUT = "--rate of `epp lab run` and `epp lab faults` does without it"
MOST_SERVERS = 16
"""Of a pool that is tried as it is."""


def knee_rps(workload: Workload, servers: Sequence[LabServer]) -> float:
    """Requests per second, the same every time. A trace that is too short to saturate the pool gives a lower figure."""
    tried = _scaled_down(servers)
    guess_rps = _guess_rps(workload, tried)
    scale = 1.0 if len(tried) == len(servers) else _guess_rps(workload, servers) / guess_rps
    return scale * _knee_rps(workload, tried, _OVERLOAD * guess_rps)


def why_none(workload: Workload, servers: Sequence[LabServer]) -> str:
    """Of a pool that finished nothing: why, and what then."""
    sample = list(islice(workload.requests(1.0, random.Random(_SEED)), _SAMPLE))
    shortest = min(tokens_of(r.prompt) + r.output_tokens for r in sample)
    longest = max(server.engine.longest_tokens for server in servers)
    if shortest > longest:
        return (
            f"no request fits: the shortest of its first {len(sample)} is of {shortest:,} tokens with its answer, "
            f"and a server takes {longest:,} at most (its KV cache, or context); name a --pool that takes more"
        )
    takes_s = min(median(_idle_ms(server, r) for r in sample) / 1e3 for server in servers)
    if takes_s > workload.run_s / 2:
        return (
            f"too slow: half of the requests take {takes_s:.3g} s or more on an idle server, and a run lasts "
            f"{workload.run_s:g} s; {_WITHOUT}"
        )
    return f"too short to find it; {_WITHOUT}"


def _idle_ms(server: LabServer, request: LabRequest) -> float:
    law, tokens = server.engine.hardware, tokens_of(request.prompt)
    return law.prefill_ms(tokens, tokens) + request.output_tokens * law.step_ms(0, 1, 0.0, tokens)


def _knee_rps(workload: Workload, servers: Sequence[LabServer], rate_rps: float) -> float:
    for _ in range(8):
        duration_s = run_s_at(workload, rate_rps)
        done_rps = _throughput_rps(workload, servers, rate_rps, duration_s)
        if done_rps < _SATURATED * rate_rps:
            break
        rate_rps *= _OVERLOAD
    return done_rps


def _scaled_down(servers: Sequence[LabServer]) -> Sequence[LabServer]:
    """`MOST_SERVERS` of them at most, as many of each kind as its share comes nearest to, in their order."""
    if len(servers) <= MOST_SERVERS:
        return servers
    exact = {engine: MOST_SERVERS * n / len(servers) for engine, n in Counter(s.engine for s in servers).items()}
    wanted = {engine: int(share) for engine, share in exact.items()}
    by_rest = sorted(exact, key=lambda engine: wanted[engine] - exact[engine])
    for engine in by_rest[: MOST_SERVERS - sum(wanted.values())]:
        wanted[engine] += 1
    found, left = [], Counter(wanted)
    for server in servers:
        if left[server.engine] > 0:
            left[server.engine] -= 1
            found.append(server)
    return found


def _guess_rps(workload: Workload, servers: Sequence[LabServer]) -> float:
    """By the step law, as if nothing were cached."""
    sample = list(islice(workload.requests(1.0, random.Random(_SEED)), _SAMPLE))
    of_law = {law: _alone_rps(law, sample) for law in {server.engine.hardware for server in servers}}
    return sum(of_law[server.engine.hardware] for server in servers)


def _alone_rps(law: Hardware, sample: Sequence[LabRequest]) -> float:
    return 1e3 / fmean(work_ms(law, tokens_of(r.prompt), tokens_of(r.prompt), r.output_tokens) for r in sample)


class _Busy:
    """An engine, and the milliseconds of work that was sent there and has not ended."""

    def __init__(self, server: LabServer, rng: random.Random) -> None:
        self.engine = Engine(replace(server.engine, max_waiting=10**9), rng, every_token=False)
        self.work_ms = 0.0
        self._of: dict[str, float] = {}

    def advance(self, now_s: float) -> list[float]:
        """When requests ended by now."""
        ended = [event for event in self.engine.advance(now_s) if event.last]
        for event in ended:
            self.work_ms -= self._of.pop(event.request_id)
        return [event.time_s for event in ended]

    def would_take_ms(self, planned: LabRequest, hashes: tuple[int, ...]) -> float:
        """By the step law, in a full batch."""
        config = self.engine.config
        tokens = tokens_of(planned.prompt)
        cached = len(self.engine.scheduler.kv.match(hashes[: tokens // config.block_tokens])) * config.block_tokens
        return work_ms(config.hardware, tokens - cached, tokens, planned.output_tokens)

    def submit(self, request: SimRequest, now_s: float, takes_ms: float) -> None:
        if self.engine.submit(request, now_s) is Admission.ACCEPTED:
            self._of[request.id] = takes_ms
            self.work_ms += takes_ms


def work_ms(law: Hardware, uncached_tokens: int, prompt_tokens: int, output_tokens: int) -> float:
    """What a request adds to what an engine has to do, when the batch is full."""
    decode_ms = output_tokens * law.step_ms(0, _BATCH, 0.0, _BATCH * prompt_tokens) / _BATCH
    return law.prefill_ms(uncached_tokens, prompt_tokens) + decode_ms


def _throughput_rps(workload: Workload, servers: Sequence[LabServer], rate_rps: float, duration_s: float) -> float:
    """What the engines finish per second in the second half of the time."""
    rng = random.Random(_SEED)
    pool = [_Busy(server, random.Random(rng.getrandbits(64))) for server in servers]
    hashes = BlockHashes()
    done = 0
    for number, planned in enumerate(schedule(workload, Clients(None), rate_rps, _SEED, duration_s=duration_s)):
        for busy in pool:
            done += sum(at_s >= duration_s / 2 for at_s in busy.advance(planned.at_s))
        text = planned.prompt if planned.answer is None else (*planned.prompt, planned.answer)
        blocks = {size: hashes.of(text, size) for size in {busy.engine.config.block_tokens for busy in pool}}
        soonest, takes_ms = min(
            ((busy, busy.would_take_ms(planned, blocks[busy.engine.config.block_tokens])) for busy in pool),
            key=lambda pair: pair[0].work_ms + pair[1],
        )
        request = SimRequest(
            str(number),
            tokens_of(planned.prompt),
            planned.output_tokens,
            blocks[soonest.engine.config.block_tokens],
        )
        soonest.submit(request, planned.at_s, takes_ms)
    return done / (duration_s / 2)
