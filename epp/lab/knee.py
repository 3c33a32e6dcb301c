"""The knee of a pool under a workload: how many requests per second it can answer at most.

All engines are kept busy by more requests than they can do, each sent to the engine with the fewest in flight, and
what comes out per second is counted once the queues stand. This is what a load of 1.0 means. It is a figure of pool
and workload, not of a policy: one that finds more in the caches than chance does still has room at 1.0.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from epp.lab.experiment import LabServer
from epp.lab.prompts import BlockHashes, tokens_of
from epp.lab.workloads.workload import Clients, Workload, schedule
from epp.sim.engine import Engine
from epp.sim.types import SimRequest

_SEED = 0
_OVERLOAD = 1.5
_SATURATED = 0.85  # of what arrived: fewer came out, so it was too much
_BATCH = 64  # for the first guess
_SAMPLE = 400


def knee_rps(workload: Workload, servers: Sequence[LabServer]) -> float:
    """Requests per second, the same every time. A trace that is too short to saturate the pool gives a lower figure."""
    rate_rps = _OVERLOAD * _guess_rps(workload, servers)
    for _ in range(8):
        duration_s = workload.run_s
        done_rps = _throughput_rps(workload, servers, rate_rps, duration_s)
        if done_rps < _SATURATED * rate_rps:
            break
        rate_rps *= _OVERLOAD
    return done_rps


def _guess_rps(workload: Workload, servers: Sequence[LabServer]) -> float:
    """By the step law, as if nothing were cached."""
    sample = list(islice(workload.requests(1.0, random.Random(_SEED)), _SAMPLE))
    prompt_tokens = sum(tokens_of(r.prompt) for r in sample) / len(sample)
    output_tokens = sum(r.output_tokens for r in sample) / len(sample)
    rate_rps = 0.0
    for server in servers:
        law = server.engine.hardware
        step_ms = law.step_ms(0, _BATCH, 0.0, int(_BATCH * prompt_tokens)) / _BATCH
        prefill_ms = (law.prefill_token_us * prompt_tokens + law.attention_pair_ns * prompt_tokens**2 / 2e3) / 1e3
        rate_rps += 1e3 / (prefill_ms + step_ms * output_tokens)
    return rate_rps


@dataclass(slots=True)
class _Busy:
    engine: Engine
    block_tokens: int
    in_flight: int = 0


def _throughput_rps(workload: Workload, servers: Sequence[LabServer], rate_rps: float, duration_s: float) -> float:
    """What the engines finish per second in the second half of the time."""
    rng = random.Random(_SEED)
    pool = [
        _Busy(
            Engine(replace(s.engine, max_waiting=10**9), random.Random(rng.getrandbits(64)), every_token=False),
            s.engine.block_tokens,
        )
        for s in servers
    ]
    hashes = BlockHashes()
    done = 0
    for number, planned in enumerate(schedule(workload, Clients(None), rate_rps, _SEED, duration_s=duration_s)):
        for busy in pool:
            ended = [event for event in busy.engine.advance(planned.at_s) if event.last]
            busy.in_flight -= len(ended)
            done += sum(event.time_s >= duration_s / 2 for event in ended)
        idlest = min(pool, key=lambda busy: busy.in_flight)
        text = planned.prompt if planned.answer is None else (*planned.prompt, planned.answer)
        blocks = hashes.of(text, idlest.block_tokens)
        idlest.engine.submit(
            SimRequest(str(number), tokens_of(planned.prompt), planned.output_tokens, blocks), planned.at_s
        )
        idlest.in_flight += 1
    return done / (duration_s / 2)
