"""What the predictor server does, without HTTP: rows in, answers out, and one artefact of all that was learned."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from epp.latency.persistence import dump
from epp.latency.predictor import Predictor
from epp.latency.types import Sample, Target
from epp.predictor.wire import PredictionRow, TrainingRow, answers_of, pod_type_of, situation_of

MODEL_TYPE = "xgboost"
MOST_JUDGED_AT_ONCE = 32
ONE_DEVIATION = 0.8413
"""The quantile one standard deviation above the mean: what uncertainty is told by when answers are means."""

ARTEFACT_AGE_S = 5.0
"""A model that is fetched again within this time is the same, whatever was learned meanwhile."""


class NotReady(Exception):
    """Too few real requests were seen to predict from."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """All that was learned, without the samples, in the format of model files.

    Attributes:
        etag: of the content, quoted.
    """

    content: bytes
    etag: str
    version: int
    made_at: datetime


class PredictionService:
    """For use from one thread.

    Args:
        clock: monotonic seconds.
        now: the time of day.
        quantile: answers are the bounds that hold with this probability; `None`: the means.
        hand_on: is shown every sample that was made of llm-d's rows. Those of our own pickers are not handed on: what
            goes in circles then ends here.
    """

    def __init__(
        self,
        predictor: Predictor,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        quantile: float | None,
        hand_on: Callable[[Sample], None] | None = None,
    ) -> None:
        self.predictor = predictor
        self._hand_on = hand_on
        self.quantile = quantile
        self._clock = clock
        self._now = now
        self._judged_rows = 0
        self._artefact: Artefact | None = None
        self._artefact_at_s = 0.0

    @property
    def ready(self) -> bool:
        """TTFT can be predicted. TPOT is learned only of answers that stream, of which there may be none."""
        return self.predictor.is_ready(Target.TTFT)

    def predict(self, rows: Sequence[PredictionRow]) -> list[dict[str, Any]]:
        """One answer per row, the same whether rows come together or alone. Raises `NotReady`."""
        if not self.ready:
            raise NotReady
        prediction = self.predictor.predict(situation_of(rows), quantile=self.quantile or ONE_DEVIATION)
        common = {"predicted_at": _iso(self._now()), **self.described(), "last_model_load": self.trained_at()}
        ready = {target: self.predictor.is_ready(target) for target in (Target.TTFT, Target.TPOT)}
        return answers_of(prediction, len(rows), ready, common, as_bounds=self.quantile is not None)

    def learn(self, rows: Sequence[TrainingRow]) -> None:
        """Learn from rows that say what came. Each is judged against what would have been promised just before."""
        start = 0
        while start < len(rows):
            # What is promised changes with every sample at first, and then slowly.
            few = min(self._judged_rows // 10 + 1, MOST_JUDGED_AT_ONCE)
            self._learn(rows[start : start + few])
            start += few

    def _learn(self, rows: Sequence[TrainingRow]) -> None:
        prediction = self.predictor.predict(situation_of(rows), quantile=self.quantile)
        self._judged_rows += len(rows)
        now_s = self._clock()
        for i, row in enumerate(rows):
            for target, ms in row.actual_ms.items():
                promise = prediction.promise(i if target is Target.TTFT else i + len(rows))
                sample = Sample(pod_type_of(row), promise, now_s, {target: ms})
                self.predictor.observe(sample)
                if self._hand_on is not None:
                    self._hand_on(sample)

    def learn_samples(self, samples: Sequence[Sample]) -> None:
        """Learn from one of our own pickers, which sends what it promised along."""
        for sample in samples:
            self.predictor.observe(sample)

    def artefact(self) -> Artefact:
        """Raises `NotReady` while there is nothing worth having."""
        if not self.predictor.ready:
            raise NotReady
        now_s = self._clock()
        old = self._artefact
        if old is None or old.version != self.predictor.model_version or now_s - self._artefact_at_s > ARTEFACT_AGE_S:
            state = self.predictor.snapshot(now_s)
            content = dump(replace(state, rows=state.rows.none()))
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            self._artefact = Artefact(content, etag, state.model_version, self._now())
            self._artefact_at_s = now_s
            return self._artefact
        return old

    def flush(self, *, samples: bool, errors: bool) -> dict[Target, int]:
        """Forget samples or served errors; what was learned stays. Returns how many samples there were, by target."""
        counts = self.sample_counts() if samples else dict.fromkeys(Target, 0)
        if samples:
            self.predictor.forget_samples()
        if errors:
            self.predictor.forget_errors()
        return counts

    # --- looked at ------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """What answers are."""
        return {
            "model_type": MODEL_TYPE,
            "objective_type": "mean" if self.quantile is None else "quantile",
            "quantile": self.quantile,
        }

    def trained_at(self) -> str | None:
        """When the served trees were; `None`: there are none."""
        age_s = self.predictor.model_age_s(self._clock())
        return None if age_s is None else _iso(datetime.fromtimestamp(self._now().timestamp() - age_s, UTC))

    def now(self) -> str:
        return _iso(self._now())

    def sample_counts(self) -> dict[Target, int]:
        actual_ms = self.predictor.rows(self._clock()).actual_ms
        return dict(zip(Target, np.isfinite(actual_ms).sum(axis=0).tolist(), strict=True))

    def bucket_counts(self) -> dict[str, int]:
        """Samples by kind of situation; see `epp.latency.buffer`."""
        buckets = Counter(self.predictor.rows(self._clock()).bucket.tolist())
        return {f"bucket_{number}": count for number, count in sorted(buckets.items())}


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
