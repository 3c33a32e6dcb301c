"""A small synthetic world for the latency room's tests: servers that follow a law, with lognormal noise."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from epp.latency.predictor import Predictor
from epp.latency.types import Sample, Situation, Target


def situation(
    ids: Sequence[str] = ("a",),
    *,
    prompt_tokens: float = 500.0,
    max_output_tokens: float = math.nan,
    uncached_tokens: float | Iterable[float] | None = None,
    waiting: float | Iterable[float] = 0.0,
    running: float | Iterable[float] = 0.0,
    kv: float | Iterable[float] = 0.1,
    in_flight: float | Iterable[float] = 0.0,
    prefill: float | Iterable[float] = 0.0,
    decode: float | Iterable[float] = 0.0,
) -> Situation:
    def column(value: float | Iterable[float]) -> np.ndarray:
        values = np.array(value, dtype=np.float64)
        return np.full(len(ids), float(values)) if values.ndim == 0 else values

    return Situation(
        endpoint_ids=list(ids),
        prompt_tokens=prompt_tokens,
        max_output_tokens=max_output_tokens,
        is_prefill=np.zeros(len(ids), dtype=np.bool_),
        uncached_tokens=column(prompt_tokens if uncached_tokens is None else uncached_tokens),
        waiting_requests=column(waiting),
        running_requests=column(running),
        kv_cache_usage_ratio=column(kv),
        in_flight_requests=column(in_flight),
        prefill_tokens_in_flight=column(prefill),
        decode_tokens_in_flight=column(decode),
    )


class World:
    """Requests come one after the other; server `i` takes `slow[i]` times as long as the law says."""

    def __init__(self, ids: Sequence[str] = ("a", "b", "c"), seed: int = 0, sigma: float = 0.15) -> None:
        self.ids = list(ids)
        self.slow = dict.fromkeys(ids, 1.0)
        self.rng = np.random.default_rng(seed)
        self.sigma = sigma
        self.now_s = 1000.0
        self.streaming = True

    def actual(self, s: Situation, row: int) -> dict[Target, float]:
        in_flight, ahead = s.in_flight_requests[row], s.prefill_tokens_in_flight[row] + s.uncached_tokens[row]
        slow = self.slow[s.endpoint_ids[row]]
        noise = self.rng.lognormal(0.0, self.sigma, 2)
        # Bends that the prior's law has not.
        ttft = slow * (25.0 + 0.02 * ahead + 0.05 * in_flight + 0.004 * in_flight**2) * noise[0]
        tpot = slow * (7.0 + 0.05 * in_flight + 0.002 * in_flight**2) * noise[1]
        tokens = 100.0 if math.isnan(s.max_output_tokens) else 0.5 * s.max_output_tokens
        actual = {Target.TTFT: ttft, Target.TPOT: tpot, Target.E2E: ttft + tokens * tpot}
        return actual if self.streaming else {Target.E2E: actual[Target.E2E]}

    def situation(self, most_in_flight: int = 100) -> Situation:
        count = len(self.ids)
        in_flight = self.rng.integers(0, most_in_flight, count).astype(float)
        return situation(
            self.ids,
            prompt_tokens=float(self.rng.lognormal(6.0, 0.8)),
            max_output_tokens=float(self.rng.integers(20, 400)),
            running=in_flight,
            in_flight=in_flight,
            kv=in_flight / 130.0,
            prefill=in_flight * self.rng.integers(0, 30, count),
            decode=in_flight * 700.0,
        )

    def step(self, predictor: Predictor, quantile: float | None = None, row: int | None = None) -> Sample:
        """One request on a random server: predict, observe."""
        s = self.situation()
        chosen = int(self.rng.integers(len(self.ids))) if row is None else row
        prediction = predictor.predict(s, quantile=quantile, e2e=True)
        self.now_s += 0.05
        sample = Sample(self.ids[chosen], prediction.promise(chosen), self.now_s, self.actual(s, chosen))
        predictor.observe(sample)
        return sample

    def run(self, predictor: Predictor, count: int, quantile: float | None = None) -> list[Sample]:
        return [self.step(predictor, quantile) for _ in range(count)]


def relative_errors(samples: Iterable[Sample], target: Target) -> list[float]:
    return [
        abs(s.promise.targets[target].mean_ms - s.actual_ms[target]) / s.actual_ms[target]
        for s in samples
        if target in s.actual_ms and target in s.promise.targets
    ]
