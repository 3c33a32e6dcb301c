"""The server that is predicted to answer this request soonest, within its targets, is best.

Where there are no predictions at all, free cache, short queue and cached prefix stand for them.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from epp.plugins._closeness import Scale, closeness
from epp.plugins._compatibility import CompatibleParameters
from epp.plugins._llm_d_latency_score import llm_d_scores
from epp.plugins._signals import NEUTRAL, fresh, known_or_mean
from epp.plugins._slow_start import without_held_back, zero_for_others
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle, Explained
from epp.scheduling.data import (
    LATENCY_PREDICTION,
    PREFIX_MATCH,
    SLOW_START,
    DataKey,
    FloatArray,
    IntArray,
    LatencyPrediction,
)
from epp.scheduling.plugin import Scorer, Services


class LatencyScorerParameters(CompatibleParameters):
    ttft_weight: float = Field(0.8, description="Weight of TTFT.")
    tpot_weight: float = Field(0.2, description="Weight of TPOT.")
    headroom_selection_strategy: str | None = Field(
        None,
        description='Among those within the targets: "most" (the default) prefers the soonest; "least" fills up the '
        "one that just makes it, to keep the others free.",
    )
    composite_kv_weight: float = Field(
        1.0, alias="compositeKVWeight", description="Weight of free KV cache, without predictions."
    )
    composite_queue_weight: float = Field(1.0, description="Weight of a short queue, without predictions.")
    composite_prefix_weight: float = Field(1.0, description="Weight of a cached prefix, without predictions.")
    latency_prediction_info_producer_name: str = Field(
        "", description="Whose predictions to read; empty: the default producer."
    )
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")
    tolerance_ratio: float = Field(0.05, ge=0, description="Differences below this share of the best are none.")
    ttft_tolerance_ms: float = Field(10.0, ge=0, description="Differences of TTFT below this are none.")
    tpot_tolerance_ms: float = Field(1.0, ge=0, description="Differences of TPOT below this are none.")
    sharpness: float = Field(2.0, gt=0, description="A server n times as slow as the best scores n^-sharpness.")

    @property
    def strategy(self) -> Literal["least", "most"]:
        """llm-d takes any text but "most" for "least"."""
        given = self.headroom_selection_strategy
        if given is None:
            return "least" if self.like_llm_d else "most"
        return "most" if given == "most" else "least"


class LatencyScorer(Scorer):
    """Scores by the difference to the best candidate, in milliseconds, relative to how long the best takes.

    Per dimension, TTFT and TPOT, score = (best / (best + excess))^sharpness, where what exceeds the best by less than
    max(toleranceRatio · best, tolerance in ms) is no excess: 100 and 101 ms both score 1; 100 and 205 ms, with a
    tolerance of 10 ms, score 1 and (100 / 195)² = 0.26. The two are averaged by weight.

    *No targets*, or "most": the lowest predictions are best. *"least"*: of those within the targets the one with the
    lowest headroom is, in the dimensions that have a target. Who would miss a target scores 0 while others would not.
    *All would miss*: the smallest miss is best, whatever the strategy.

    A server without a prediction scores the mean of the others: neither best nor worst. New and failing servers have
    their turn first (see predicted-latency-producer).

    *No predictions*: score = weighted mean of 1 − KV usage, (longest queue − queue) / longest queue, and the matched
    share of the prompt.

    Like llm-d: min-max over the candidates, and a server without a prediction has a headroom of 0 ms.
    """

    plugin_type = "latency-scorer"
    parameters_model = LatencyScorerParameters

    def __init__(self, name: str, parameters: LatencyScorerParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._parameters = parameters
        self._strategy = parameters.strategy
        self._weights = parameters.ttft_weight, parameters.tpot_weight
        self._scales = (
            Scale(parameters.tolerance_ratio, parameters.ttft_tolerance_ms, parameters.sharpness),
            Scale(parameters.tolerance_ratio, parameters.tpot_tolerance_ms, parameters.sharpness),
        )
        self._key = LATENCY_PREDICTION.by(parameters.latency_prediction_info_producer_name)
        self._slow_start_key = SLOW_START.by(parameters.latency_prediction_info_producer_name)
        self._match_key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return self._key, self._match_key

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        prediction = cycle.get(self._key)
        if prediction is not None:
            cycle.explain(self.name, candidates, _predicted(prediction, candidates))
        if self._parameters.like_llm_d:
            if prediction is None or not prediction.known[candidates.rows].any():
                return np.round(self._composite(cycle, candidates), 2)
            return llm_d_scores(prediction, candidates.rows, *self._weights, strategy=self._strategy)
        eligible = without_held_back(cycle, candidates, self._slow_start_key)
        if prediction is None or not np.count_nonzero(eligible.take(prediction.known)):
            scores = self._composite(cycle, eligible)
        else:
            scores = self._by_prediction(prediction, eligible)
        return zero_for_others(scores, eligible, candidates)

    def _by_prediction(self, prediction: LatencyPrediction, candidates: Candidates) -> FloatArray:
        rows = candidates.rows
        known, ok = candidates.take(prediction.known), candidates.take(prediction.ok)
        all_miss = not np.count_nonzero(ok)
        compared = known if all_miss else ok
        if np.count_nonzero(compared) == len(compared):
            return self._compare(prediction, rows, all_miss)
        scores = np.zeros(len(rows))
        scores[compared] = self._compare(prediction, rows[compared], all_miss)
        scores[~known] = scores[known].mean()
        return scores

    def _compare(self, prediction: LatencyPrediction, rows: IntArray, all_miss: bool) -> FloatArray:
        """Scores of `rows`, which are all within the targets or all miss one."""
        by_headroom = prediction.constrained and (all_miss or self._strategy == "least")
        parts: list[FloatArray] = []
        weights: list[float] = []
        for predicted_ms, headroom_ms, constrained, weight, scale in zip(
            (prediction.ttft_ms, prediction.tpot_ms),
            (prediction.ttft_headroom_ms, prediction.tpot_headroom_ms),
            (prediction.ttft_constrained, prediction.tpot_constrained),
            self._weights,
            self._scales,
            strict=True,
        ):
            if by_headroom and not constrained:
                continue
            predicted_here_ms = predicted_ms[rows]
            cost_ms = headroom_ms[rows] if by_headroom else predicted_here_ms
            if all_miss:
                cost_ms = np.maximum(-cost_ms, 0.0)
            scores = closeness(cost_ms, predicted_here_ms, scale)
            if scores is not None:
                parts.append(scores)
                weights.append(weight)
        return weighted_mean(parts, weights) if parts else np.ones(len(rows))

    def _composite(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        parameters, snapshot = self._parameters, candidates.snapshot
        cache = known_or_mean(fresh(snapshot.kv_cache_usage_ratio, candidates, cycle.now_s))
        queue = known_or_mean(fresh(snapshot.waiting_requests, candidates, cycle.now_s))
        match = cycle.get(self._match_key)
        neutral = np.full(len(candidates), NEUTRAL)
        return weighted_mean(
            [
                neutral if cache is None else 1.0 - np.clip(cache, 0.0, 1.0),
                neutral if queue is None else shortness(queue),
                np.zeros(len(candidates)) if match is None else candidates.take(match.ratio),
            ],
            [parameters.composite_kv_weight, parameters.composite_queue_weight, parameters.composite_prefix_weight],
        )


def _predicted(prediction: LatencyPrediction, candidates: Candidates) -> dict[str, Explained]:
    """What docs/prediction.md says can be seen of it."""
    take = candidates.take
    explained: dict[str, Explained] = {"ttft_ms": take(prediction.ttft_ms), "tpot_ms": take(prediction.tpot_ms)}
    if prediction.ttft_constrained:
        explained["ttft_headroom_ms"] = take(prediction.ttft_headroom_ms)
    if prediction.tpot_constrained:
        explained["tpot_headroom_ms"] = take(prediction.tpot_headroom_ms)
    return explained


def shortness(queue: FloatArray) -> FloatArray:
    longest = queue.max()
    return (longest - queue) / longest if longest > 0 else np.ones_like(queue)


def weighted_mean(parts: Sequence[FloatArray], weights: Sequence[float]) -> FloatArray:
    """Of weights that add up to nothing, only the first part counts."""
    total = sum(weights)
    if len(parts) == 1 or total <= 0:
        return parts[0]
    mean = parts[0] * (weights[0] / total)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        mean = mean + part * (weight / total)
    return mean
