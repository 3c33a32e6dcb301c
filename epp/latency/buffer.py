"""The samples that models are trained on: a fixed number of rows, spread over situations, and none of them old.

Traffic is mostly of one kind, and a model is asked about the other kinds just when it matters: full servers, long
prompts. So rows are sorted into buckets by load and by tokens to prefill, and when the buffer is full the fullest
bucket gives up its oldest row. What is rare is thus kept longer than what is common, but not for ever: beyond
`max_age_s` a row may describe a server that is gone.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epp.latency.features import COLUMN, FEATURES, FeatureMatrix
from epp.latency.types import FloatArray, Sample, Target

_TARGETS = tuple(Target)
_ACTIVE, _UNCACHED = COLUMN["active_requests"], COLUMN["uncached_tokens"]
_LOAD_BUCKETS, _PREFILL_BUCKETS = 10, 8


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples as arrays, oldest first.

    Attributes:
        actual_ms: (rows, targets), targets in the order of `Target`; NaN is not observed.
        bucket: which kind of situation each row is.
    """

    features: FeatureMatrix
    actual_ms: FloatArray
    at_s: FloatArray
    endpoint_ids: Sequence[str]
    bucket: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.at_s)

    def none(self) -> "Rows":
        """No row of the same shape."""
        return Rows(self.features[:0], self.actual_ms[:0], self.at_s[:0], self.endpoint_ids[:0], self.bucket[:0])


def bucket_of(features: npt.NDArray[np.float32]) -> int:
    """The bucket of one row: by powers of two of the load, and of four of the tokens to prefill."""
    active, uncached = float(features[_ACTIVE]), float(features[_UNCACHED])
    load = min(int(active).bit_length(), _LOAD_BUCKETS - 1) if active >= 0.0 else 0
    prefill = min(int(uncached).bit_length() // 2, _PREFILL_BUCKETS - 1) if uncached >= 0.0 else 0
    return load * _PREFILL_BUCKETS + prefill


class SampleBuffer:
    """See the module's text. Adding costs the same however many rows there are. For use from one thread."""

    def __init__(self, capacity: int, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._capacity = capacity
        self._features = np.empty((capacity, len(FEATURES)), dtype=np.float32)
        self._actual = np.empty((capacity, len(_TARGETS)))
        self._at = np.empty(capacity)
        self._endpoint: list[str] = [""] * capacity
        self._bucket = np.empty(capacity, dtype=np.intp)
        self._used = np.zeros(capacity, dtype=np.bool_)
        self._free = list(range(capacity - 1, -1, -1))
        self._slots: list[deque[int]] = [deque() for _ in range(_LOAD_BUCKETS * _PREFILL_BUCKETS)]

    def __len__(self) -> int:
        return self._capacity - len(self._free)

    def add(self, sample: Sample) -> None:
        self._add(
            sample.promise.features,
            [sample.actual_ms.get(target, np.nan) for target in _TARGETS],
            sample.at_s,
            sample.endpoint_id,
        )

    def _add(
        self, features: npt.NDArray[np.float32], actual_ms: Sequence[float] | FloatArray, at_s: float, endpoint_id: str
    ) -> None:
        bucket = bucket_of(features)
        # Two at most: what comes in makes room for itself, and the bucket still empties of what is too old.
        for _ in range(2):
            if self._slots[bucket] and self._at[self._slots[bucket][0]] < at_s - self._max_age_s:
                self._drop_oldest(bucket)
        if not self._free:
            self._drop_oldest(max(range(len(self._slots)), key=lambda b: len(self._slots[b])))
        slot = self._free.pop()
        self._features[slot] = features
        self._actual[slot] = actual_ms
        self._at[slot] = at_s
        self._endpoint[slot] = endpoint_id
        self._bucket[slot] = bucket
        self._used[slot] = True
        self._slots[bucket].append(slot)

    def _drop_oldest(self, bucket: int) -> None:
        slot = self._slots[bucket].popleft()
        self._used[slot] = False
        self._free.append(slot)

    def clear(self) -> None:
        for bucket, slots in enumerate(self._slots):
            while slots:
                self._drop_oldest(bucket)

    def rows(self, now_s: float) -> Rows:
        """A copy of what is not too old by `now_s`."""
        slots = np.flatnonzero(self._used & (self._at >= now_s - self._max_age_s))
        slots = slots[np.argsort(self._at[slots], kind="stable")]
        return Rows(
            self._features[slots],
            self._actual[slots],
            self._at[slots],
            [self._endpoint[slot] for slot in slots.tolist()],
            self._bucket[slots],
        )

    def restore(self, features: FeatureMatrix, actual_ms: FloatArray, at_s: FloatArray, ids: Sequence[str]) -> None:
        """Add rows from elsewhere, oldest first; shapes as in `Rows`."""
        for i in range(len(at_s)):
            self._add(features[i], actual_ms[i], float(at_s[i]), ids[i])
