"""Predictions in one line, and a predictor that says what it is told to."""

import numpy as np
from plugin_fakes import a_cycle

from epp.latency.types import Estimate, Prediction, Source, Target
from epp.scheduling.data import LATENCY_PREDICTION, SLOW_START, LatencyPrediction, SlowStart

NONE = float("nan")


def predicted(ttft, tpot=None, *, slo=(None, None), known=None, requests=None, limits=None):
    """A prediction per endpoint, held against `slo`: TTFT and TPOT in ms."""
    ttft_ms = np.array(ttft, dtype=float)
    tpot_ms = np.full(len(ttft_ms), np.nan) if tpot is None else np.array(tpot, dtype=float)
    ttft_headroom = np.full(len(ttft_ms), np.nan) if slo[0] is None else slo[0] - ttft_ms
    tpot_headroom = np.full(len(ttft_ms), np.nan) if slo[1] is None else slo[1] - tpot_ms
    known = ~np.isnan(ttft_ms)
    with np.errstate(invalid="ignore"):
        ok = known & ~(ttft_headroom <= 0) & ~(tpot_headroom <= 0)
    return LatencyPrediction(
        ttft_ms,
        tpot_ms,
        ttft_headroom,
        tpot_headroom,
        known,
        ok,
        slo[0] is not None,
        slo[1] is not None,
        np.array(requests if requests is not None else [1.0] * len(ttft_ms), dtype=float),
    )


def headrooms(*pairs, requests=None):
    """Predictions by their headrooms, as llm-d's examples state them."""
    ttft, tpot = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    return predicted(10_000 - ttft, 1_000 - tpot, slo=(10_000, 1_000), requests=requests)


def cycle_with(prediction, *, held_back=None, turn=None, **kwargs):
    cycle = a_cycle(**kwargs)
    if prediction is not None:
        cycle.publish(LATENCY_PREDICTION.by(None), prediction)
    if held_back is not None:
        cycle.publish(SLOW_START.by(None), SlowStart(np.array(held_back, dtype=bool), turn))
    return cycle


class ToyPredictor:
    """Predicts what its attributes say for the endpoint's number, and remembers what it is asked and told.

    A number for all endpoints, or one per endpoint. Features are the row's endpoint number and prefill in flight.
    """

    def __init__(self, *, ttft=100.0, tpot=10.0, e2e=2000.0, ready=frozenset(Target)):
        self.ttft, self.tpot, self.e2e = ttft, tpot, e2e
        self.ready = ready
        self.error = None
        self.bound_factor = 1.0
        self.situations, self.quantiles, self.samples, self.forgotten = [], [], [], []
        self.learned = {}

    def is_ready(self, target):
        return target in self.ready

    def predict(self, situation, *, quantile=None, e2e=False):
        self.situations.append(situation)
        self.quantiles.append(quantile)
        if self.error is not None:
            raise self.error
        numbers, features = self._features(situation)

        def estimate(values):
            mean = np.full(len(numbers), float(values)) if np.ndim(values) == 0 else np.array(values, float)[numbers]
            factor = 1.0 if quantile is None else self.bound_factor
            return Estimate(mean, mean * factor, mean, np.ones(len(mean)), Source.MODEL)

        return Prediction(
            endpoint_ids=situation.endpoint_ids,
            features=features,
            ttft=estimate(self.ttft),
            tpot=estimate(self.tpot),
            e2e=estimate(self.e2e) if e2e else None,
            quantile=quantile,
            model_version=3,
        )

    def without_prediction(self, situation):
        nothing = np.full(len(situation), np.nan)
        estimate = Estimate(nothing, nothing, nothing, nothing, Source.PRIOR)
        return Prediction(situation.endpoint_ids, self._features(situation)[1], estimate, estimate, None, None, 3)

    @staticmethod
    def _features(situation):
        numbers = np.array([int(endpoint_id.rpartition("-")[2]) for endpoint_id in situation.endpoint_ids])
        return numbers, np.column_stack([numbers, situation.prefill_tokens_in_flight]).astype(np.float32)

    def observe(self, sample):
        self.samples.append(sample)

    def samples_of(self, endpoint_id):
        return self.learned.get(endpoint_id, 0)

    def forget(self, endpoint_id):
        self.forgotten.append(endpoint_id)

    def state(self, now_s):
        return {"at_s": now_s}
