"""Requests that the fit has not seen, on the real server and on a simulated one of the fitted shape."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median

import orjson

from benchmarks.real_vllm.server import MODEL, SIZES
from epp.lab.fit import Fit, Measurement
from epp.lab.measure import OUTPUT_TOKENS, measure
from epp.lab.yardsticks import percentile
from epp.sim.config import EngineConfig
from epp.sim.engine import Engine
from epp.sim.traffic import Result, run_traffic
from epp.sim.types import SimRequest, TokenEvent
from epp.sim.workload import Lengths, PlannedRequest

BURSTS = ((1, 128), (1, 1_024), (2, 256), (3, 384), (6, 192), (12, 96), (24, 48))
"""Streams at once, and about so many tokens for each: none of them in the ladder of the fit."""
SEED = 7
PROMPT, OUTPUT = Lengths(log(120), 0.8, 1_500), Lengths(log(24), 0.5, 80)
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def engine_of(fit: Fit) -> EngineConfig:
    """The simulated server: what was fitted, and the sizes that the real one was started with. Without noise."""
    return replace(
        SIZES,
        hardware=fit.hardware,
        overhead_ms=(fit.overhead_ms, fit.overhead_ms),
        noise_sigma=0.0,
        prefix_caching=False,
    )


@dataclass(frozen=True, slots=True)
class Times:
    ttft_ms: float
    tpot_ms: float | None


def simulated(config: EngineConfig, requests: Sequence[tuple[float, int, int]]) -> list[Times]:
    """For each arrival in seconds, prompt tokens and output tokens, in order of time."""
    engine = Engine(config, random.Random(SEED), every_token=False)
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    def note(events: Sequence[TokenEvent]) -> None:
        for event in events:
            first.setdefault(int(event.request_id), event.time_s)
            last[int(event.request_id)] = event.time_s

    for number, (at_s, prompt_tokens, output_tokens) in enumerate(requests):
        note(engine.advance(at_s))
        engine.submit(SimRequest(str(number), prompt_tokens, output_tokens), at_s)
    while (next_s := engine.next_event_s()) is not None:
        note(engine.advance(next_s))
    return [
        Times(
            (first[i] - at_s) * 1e3,
            (last[i] - first[i]) * 1e3 / (output_tokens - 1) if output_tokens > 1 else None,
        )
        for i, (at_s, _, output_tokens) in enumerate(requests)
    ]


# --- bursts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Burst:
    """Medians of streams that begin at once; `real` over the repeats too."""

    streams: int
    prompt_tokens: int
    real: Times
    simulated: Times


def send_bursts(url: str, seed: int) -> list[Measurement]:
    """Each of `BURSTS` once. Raises `Problem`."""
    return measure(url, MODEL, 1, seed, BURSTS)


def bursts(fit: Fit, found: Sequence[Measurement]) -> list[Burst]:
    """What `send_bursts` found in all rounds, and what the simulated server makes of it."""
    return [_burst(fit, found[i :: len(BURSTS)]) for i in range(len(BURSTS))]


def _burst(fit: Fit, repeated: Sequence[Measurement]) -> Burst:
    streams, tokens = repeated[0].streams, round(median(m.prompt_tokens for m in repeated))
    times = simulated(engine_of(fit), [(0.0, tokens, OUTPUT_TOKENS)] * streams)
    return Burst(
        streams,
        tokens,
        Times(median(m.ttft_ms for m in repeated), median(m.tpot_ms or 0.0 for m in repeated)),
        Times(median(t.ttft_ms for t in times), median(t.tpot_ms or 0.0 for t in times)),
    )


# --- an open loop -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals of mixed lengths. Lists are in the order of the requests; `failed` ones are in none."""

    rate_rps: float
    failed: int
    real_ttft_ms: list[float]
    simulated_ttft_ms: list[float]
    real_tpot_ms: list[float]
    simulated_tpot_ms: list[float]

    def figures(self) -> list[dict[str, object]]:
        rows = []
        for name, real, simulated_ms in (
            ("TTFT", self.real_ttft_ms, self.simulated_ttft_ms),
            ("TPOT", self.real_tpot_ms, self.simulated_tpot_ms),
        ):
            errors = [abs(s - r) / r for r, s in zip(real, simulated_ms, strict=True)]
            row: dict[str, object] = {"open loop": name, "requests": len(real)}
            for ratio in (0.5, 0.9):
                row[f"real p{ratio * 100:.0f} ms"] = percentile(real, ratio)
                row[f"predicted p{ratio * 100:.0f} ms"] = percentile(simulated_ms, ratio)
            row["median error of a request"] = f"{median(errors):.0%}" if errors else None
            row["mean error"] = f"{fmean(errors):.0%}" if errors else None
            rows.append(row)
        return rows


def send_open_loop(url: str, rate_rps: float, requests: int, seed: int) -> list[Result]:
    rng = random.Random(seed)
    planned, at_s = [], 0.0
    for _ in range(requests):
        at_s += rng.expovariate(rate_rps)
        planned.append(_request(at_s, PROMPT.draw(rng), OUTPUT.draw(rng), rng))
    return asyncio.run(run_traffic(url, planned, timeout_s=120.0))


def open_loop(fit: Fit, rate_rps: float, rounds: Sequence[Sequence[Result]]) -> OpenLoop:
    """What was sent in some rounds, each begun on an idle server."""
    pairs: list[tuple[Result, Times]] = []
    for results in rounds:
        whole = [r for r in results if r.error is None and r.ttft_ms is not None]
        asked = [(r.planned.at_s, r.usage.prompt_tokens or 1, r.usage.completion_tokens or 1) for r in whole]
        pairs += zip(whole, simulated(engine_of(fit), asked), strict=True)
    decoding = [(r.tpot_ms, s.tpot_ms) for r, s in pairs if r.tpot_ms is not None and s.tpot_ms is not None]
    return OpenLoop(
        rate_rps,
        sum(map(len, rounds)) - len(pairs),
        [r.ttft_ms or 0.0 for r, _ in pairs],
        [s.ttft_ms for _, s in pairs],
        [real for real, _ in decoding],
        [s for _, s in decoding],
    )


def _request(at_s: float, syllables: int, output_tokens: int, rng: random.Random) -> PlannedRequest:
    body = {
        "model": MODEL,
        "prompt": " ".join(rng.choices(_SYLLABLES, k=syllables)),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json"}
    return PlannedRequest(at_s, "completions", True, None, headers, orjson.dumps(body))
