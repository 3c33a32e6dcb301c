"""What sets one server apart: a factor per endpoint and target, learned on top of the shared model.

Half the pool may be older hardware, and one server may be slow today. The model learns from all servers what load does;
the bias learns for each how much slower or faster than that it is: a running mean of log(actual / predicted), shrunk
towards 0 while samples are few. When the newest errors leave the mean by more than noise explains, the server has
changed, and the mean starts anew from them.

The mean is slow on purpose: load comes in waves, and a mean that follows each wave, late as answers are, is worse than
none. In simulated pools a weight of 0.01 had errors a tenth below those of 0.1. The watch on drift is what is fast.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np

from epp.latency.types import FloatArray

_SLOW, _FAST = 0.01, 0.15  # weight of a new sample in the mean, and in the watch on drift
_SHRINK_SAMPLES = 3.0
_CLIP = 2.5  # one sample says at most "12 times slower"
_DRIFT_SIGMAS = 6.0  # of the fast mean; waves of load are no drift
_DRIFT_LEAST = 0.2  # smaller changes are left to the slow mean
_FRESH_START_SAMPLES = 6.0  # what the fast mean is worth when it takes over


@dataclass(slots=True)
class _Track:
    mean: float = 0.0
    fast: float = 0.0
    deviation: float = 0.3  # mean absolute distance of a sample from the fast mean
    samples: float = 0.0

    @property
    def bias(self) -> float:
        return self.mean * self.samples / (self.samples + _SHRINK_SAMPLES)


class EndpointBias:
    """The biases of one target, as logarithms: 0 is like the model says, 0.69 twice as slow. For use from one thread.

    Args:
        max_endpoints: the least recently heard of is forgotten beyond these.
    """

    def __init__(self, max_endpoints: int = 4096) -> None:
        self._max_endpoints = max_endpoints
        self._tracks: OrderedDict[str, _Track] = OrderedDict()
        self._bias: dict[str, float] = {}
        self._sum = 0.0
        # The factors of the endpoints last asked for; kept up to date, as the same are asked for again and again.
        self._asked: Sequence[str] = ()
        self._row_by_id: dict[str, int] = {}
        self._unknown_rows: list[int] = []
        self._factors: FloatArray = np.ones(0)
        self.drifts = 0

    def observe(self, endpoint_id: str, log_ratio: float) -> bool:
        """Learn log(actual / what the model says without bias). True if this endpoint was found to have changed."""
        log_ratio = min(max(log_ratio, -_CLIP), _CLIP)
        track = self._tracks.get(endpoint_id)
        if track is None:
            track = self._tracks[endpoint_id] = _Track(fast=log_ratio)
            if len(self._tracks) > self._max_endpoints:
                self.forget(next(iter(self._tracks)))
        self._tracks.move_to_end(endpoint_id)
        track.samples += 1.0
        distance = log_ratio - track.mean
        rate = max(_SLOW, 1.0 / track.samples)
        track.mean += rate * distance
        track.fast += _FAST * (log_ratio - track.fast)
        # Around the fast mean, as a change of the server is not noise; what is far out is worth only so much.
        noise = min(abs(log_ratio - track.fast), 4.0 * track.deviation)
        track.deviation += max(_SLOW, min(_FAST, 1.0 / track.samples)) * (noise - track.deviation)
        drifted = track.samples > 2.0 * _FRESH_START_SAMPLES and self._has_drifted(track)
        if drifted:
            track.mean = track.fast
            track.samples = _FRESH_START_SAMPLES
            self.drifts += 1
        self._set(endpoint_id, track.bias)
        return drifted

    @staticmethod
    def _has_drifted(track: _Track) -> bool:
        sigma = 1.25 * track.deviation * sqrt(_FAST / (2.0 - _FAST))  # 1.25: from absolute to standard deviation
        return abs(track.fast - track.mean) > max(_DRIFT_SIGMAS * sigma, _DRIFT_LEAST)

    def of(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """One bias per endpoint; of one never heard of, the mean of the others."""
        get, unknown = self._bias.get, self.mean
        return np.array([get(endpoint_id, unknown) for endpoint_id in endpoint_ids], dtype=np.float64)

    def factors_of(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """exp of `of`. Cheap for the very same sequence as the last time; to be used at once."""
        if endpoint_ids is not self._asked:
            self._asked = endpoint_ids
            self._row_by_id = {endpoint_id: row for row, endpoint_id in enumerate(endpoint_ids)}
            self._unknown_rows = [row for row, endpoint_id in enumerate(endpoint_ids) if endpoint_id not in self._bias]
            self._factors = np.exp(self.of(endpoint_ids))
        if self._unknown_rows:
            self._factors[self._unknown_rows] = exp(self.mean)
        return self._factors

    def relative(self, endpoint_id: str) -> float:
        """By how much this endpoint's bias differs from the others' mean."""
        return self._bias.get(endpoint_id, self.mean) - self.mean

    @property
    def mean(self) -> float:
        """Over the endpoints."""
        return self._sum / len(self._bias) if self._bias else 0.0

    def rebase(self, offsets: Mapping[str, tuple[float, float]]) -> None:
        """Another model is served: what each endpoint is relative to that one, and how many samples say so."""
        for endpoint_id in list(self._tracks):
            if endpoint_id not in offsets:
                self.forget(endpoint_id)
        for endpoint_id, (offset, samples) in offsets.items():
            track = self._tracks.setdefault(endpoint_id, _Track())
            track.mean = track.fast = offset
            track.samples = samples
            self._set(endpoint_id, track.bias)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint is gone. Nothing happens if it is not known."""
        self._tracks.pop(endpoint_id, None)
        self._sum -= self._bias.pop(endpoint_id, 0.0)
        self._asked = ()

    def _set(self, endpoint_id: str, bias: float) -> None:
        before = self._bias.get(endpoint_id)
        self._sum += bias if before is None else bias - before
        self._bias[endpoint_id] = bias
        if before is None:
            self._asked = ()
        elif (row := self._row_by_id.get(endpoint_id)) is not None:
            self._factors[row] = exp(bias)

    def factors(self) -> dict[str, float]:
        """How many times slower than the model each endpoint is, for people."""
        return {endpoint_id: float(np.exp(bias)) for endpoint_id, bias in self._bias.items()}

    def state(self) -> list[list[Any]]:
        return [[key, t.mean, t.fast, t.deviation, t.samples] for key, t in self._tracks.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        """What `state` gave. Raises ValueError or TypeError for anything else."""
        tracks = {str(key): _Track(*(float(number) for number in numbers)) for key, *numbers in state}
        for endpoint_id, track in list(tracks.items())[-self._max_endpoints :]:
            self._tracks[endpoint_id] = track
            self._set(endpoint_id, track.bias)
