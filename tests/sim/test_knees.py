"""The engine saturates where real servers do: knees of a rate ladder, Llama 3.1 8B on one H100, in ≈ 200, out ≈ 62."""

import random
from statistics import fmean

import pytest

from epp.sim.config import EngineConfig
from epp.sim.engine import Engine
from epp.sim.types import SimRequest

PROMPT_TOKENS, OUTPUT_TOKENS = 200, 62
SHARED = tuple(range(12))  # 192 of the 200 prompt tokens, as when a fixed instruction comes before a short question


def keeps_up(config: EngineConfig, rate_rps: float, requests: int = 2500) -> bool:
    """Whether Poisson arrivals at this rate are served without a queue that grows: the last third sees no long TTFT."""
    rng = random.Random(1)
    engine = Engine(config, rng)
    arrived_s: list[float] = []
    ttft_s = [0.0] * requests
    now_s = 0.0
    for number in range(requests + 1):
        now_s += rng.expovariate(rate_rps) if number < requests else 3600.0
        for event in engine.advance(now_s):
            if event.index == 0:
                ttft_s[int(event.request_id)] = event.time_s - arrived_s[int(event.request_id)]
        if number < requests:
            arrived_s.append(now_s)
            engine.submit(SimRequest(str(number), PROMPT_TOKENS, OUTPUT_TOKENS, SHARED), now_s)
    return fmean(ttft_s[-requests // 3 :]) < 0.5


@pytest.mark.parametrize(
    ("config", "knee_rps"),
    [
        (EngineConfig(max_waiting=10_000, max_sequences=128, prefix_caching=False), 106),
        (EngineConfig(max_waiting=10_000, max_sequences=192, prefix_caching=False), 122),
        (EngineConfig(max_waiting=10_000, max_sequences=128, max_batched_tokens=2048), 172),
    ],
    ids=["128 sequences", "192 sequences", "prefix cache and chunked prefill"],
)
def test_the_knee_is_where_it_was_measured(config: EngineConfig, knee_rps: float) -> None:
    assert keeps_up(config, 0.87 * knee_rps)
    assert not keeps_up(config, 1.15 * knee_rps)
