"""Samples on their way to a predictor in another process: plain JSON values, the features of the decision included.

{"feature_set": "…", "samples": [{"endpoint_id": "default/a", "age_s": 0.4, "features": [512, null, …],
  "promised": {"ttft": [mean, bound, base, spread, "prior"]}, "quantile": null, "model_version": 0,
  "actual_ms": {"ttft": 48.1}}, …]}
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from epp.latency.features import FEATURE_SET_HASH, FEATURES
from epp.latency.types import Promise, Sample, Source, Target, TargetPromise


def to_json(samples: Sequence[Sample], now_s: float) -> dict[str, Any]:
    """NaN is null."""
    return {"feature_set": FEATURE_SET_HASH, "samples": [_plain(sample, now_s) for sample in samples]}


def from_json(value: Any, now_s: float) -> list[Sample]:
    """Raises ValueError, KeyError or TypeError if this is not what `to_json` makes."""
    if value["feature_set"] != FEATURE_SET_HASH:
        raise ValueError("made of other features")
    return [_sample(entry, now_s) for entry in value["samples"]]


def _plain(sample: Sample, now_s: float) -> dict[str, Any]:
    promise = sample.promise
    return {
        "endpoint_id": sample.endpoint_id,
        "age_s": max(now_s - sample.at_s, 0.0),
        "features": [value if value == value else None for value in promise.features.tolist()],
        "promised": {target.value: [*said[:-1], said.source.value] for target, said in promise.targets.items()},
        "quantile": promise.quantile,
        "model_version": promise.model_version,
        "actual_ms": {target.value: float(actual) for target, actual in sample.actual_ms.items()},
    }


def _sample(entry: Any, now_s: float) -> Sample:
    numbers = [float("nan") if value is None else float(value) for value in entry["features"]]
    quantile = None if entry["quantile"] is None else float(entry["quantile"])
    age_s = float(entry["age_s"])
    if len(numbers) != len(FEATURES) or not 0.0 <= age_s < float("inf"):
        raise ValueError("not a sample")
    if quantile is not None and not 0.0 < quantile < 1.0:
        raise ValueError("a quantile lies between 0 and 1")
    return Sample(
        endpoint_id=str(entry["endpoint_id"]),
        promise=Promise(
            features=np.array(numbers, dtype=np.float32),
            targets={Target(name): _promised(said) for name, said in entry["promised"].items()},
            quantile=quantile,
            model_version=int(entry["model_version"]),
        ),
        at_s=now_s - age_s,
        actual_ms={Target(name): float(actual) for name, actual in entry["actual_ms"].items()},
    )


def _promised(said: Sequence[Any]) -> TargetPromise:
    *numbers, source = said
    mean_ms, bound_ms, base_ms, spread = (float(number) for number in numbers)
    if not all(isfinite(number) and number > 0.0 for number in (mean_ms, bound_ms, base_ms, spread)):
        raise ValueError("a promise is a positive number")
    return TargetPromise(mean_ms, bound_ms, base_ms, spread, Source(source))
