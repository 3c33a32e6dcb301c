"""The predictor: predict, observe, learn, in this order.

`predict` answers for all candidates at once, from the prior law until trees have shown to be better, always with the
bias of each endpoint and with bounds from the errors of what was served. Of the chosen candidate the caller keeps the
promise, and gives it back with what really came: `observe` first judges the promise, then calibrates, then learns.
Training is for another thread: `training_due` hands out a job, `train(job)` works on it, `publish` takes what it found.

All calls are for one thread and none waits. Time is an argument. XGBoost trains trees; it is not needed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np

from epp.latency.bias import EndpointBias
from epp.latency.buffer import Rows, SampleBuffer
from epp.latency.calibration import Calibrator, load_level, load_level_of
from epp.latency.errors import ServedErrors
from epp.latency.features import FEATURES, feature_matrix
from epp.latency.jobs import TrainedModel, TrainingJob
from epp.latency.model import PRIOR_SPREAD, BaseEstimate, Model
from epp.latency.prior import Prior
from epp.latency.types import Estimate, FloatArray, Prediction, Sample, Situation, Source, Target

_ASSUMED_ERROR = 0.4  # standard deviation of the prior's log error before anything is known of it
_AFTER_DRIFT_SCORES = 60
_MOST_LOG_FACTOR = 6.0  # no bound is more than 400 times its prediction


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """How the predictor learns.

    Attributes:
        ready_samples: real samples of a target before its predictions should be used.
        training_min_rows: samples of a target before trees are grown for it.
        training_min_new: new samples since the last job before the next one.
        training_interval_s, drift_interval_s: least time between two jobs, and when errors have grown much.
        buffer_rows, buffer_max_age_s: how many samples are kept for training, and how long.
        half_life_s: a sample this old weighs half.
        max_endpoints: endpoints remembered; beyond, the one longest silent is forgotten.
    """

    ready_samples: int = 50
    training_min_rows: int = 300
    training_min_new: int = 100
    training_interval_s: float = 30.0
    drift_interval_s: float = 5.0
    buffer_rows: int = 10_000
    buffer_max_age_s: float = 3600.0
    half_life_s: float = 900.0
    max_endpoints: int = 4096


@dataclass(frozen=True, slots=True)
class PredictorState:
    """What survives a restart. Times are ages in seconds; `rows.at_s` is negative: so long before now."""

    model: Model | None
    model_version: int
    model_age_s: float | None
    prior: Mapping[str, Any]
    bias: Mapping[str, Any]
    calibration: Mapping[str, Any]
    samples_by_endpoint: Mapping[str, int]
    rows: Rows


class Predictor:
    """See the module's text."""

    def __init__(
        self, options: PredictorOptions | None = None, on_sample: Callable[[Sample], None] | None = None
    ) -> None:
        """`on_sample` is shown every sample that was learned from."""
        self.options = options or PredictorOptions()
        self._on_sample = on_sample
        self.model_version = 0
        self.dropped_samples = 0  # that were no measurements
        self._model: Model | None = None
        self._model_at_s: float | None = None
        self._prior = Prior()
        self._spread = np.full(0, PRIOR_SPREAD)
        self._bias = {target: EndpointBias(self.options.max_endpoints) for target in Target}
        self._calibration = {target: Calibrator(assumed_score=_ASSUMED_ERROR) for target in Target}
        self._errors = {target: ServedErrors() for target in Target}
        self._buffer = SampleBuffer(self.options.buffer_rows, self.options.buffer_max_age_s)
        self._samples: dict[str, int] = {}
        self._last_job_s: float | None = None
        self._new_samples = 0
        self._drifted = False
        self._last_training: TrainedModel | None = None

    # --- predict ------------------------------------------------------------------------------------------------

    def predict(self, situation: Situation, *, quantile: float | None = None, e2e: bool = False) -> Prediction:
        """TTFT and TPOT of every candidate, and E2E if asked for. `quantile` in (0, 1) asks for bounds."""
        if quantile is not None and not 0.0 < quantile < 1.0:
            raise ValueError("a quantile lies between 0 and 1")
        features = feature_matrix(situation)
        levels = None if quantile is None else load_level(features)
        prior = self._prior.freeze()
        law = prior.predict(features)
        by_trees = {} if self._model is None else self._model.predict(features, law)

        def estimate(target: Target, trees: BaseEstimate | None, law_ms: FloatArray) -> Estimate:
            base_ms, spread = trees or (law_ms, self._prior_spread(len(law_ms)))
            mean_ms = base_ms * self._bias[target].factors_of(situation.endpoint_ids)
            bound_ms = mean_ms
            if quantile is not None and levels is not None:
                factors = self._calibration[target].factors(quantile, levels)
                bound_ms = mean_ms * np.exp(np.minimum(factors * spread, _MOST_LOG_FACTOR))
            return Estimate(mean_ms, bound_ms, base_ms, spread, Source.MODEL if trees else Source.PRIOR)

        end_to_end = None
        if e2e:
            law_ms = prior.predict_e2e(features, law[Target.TTFT], law[Target.TPOT])
            trees = None if self._model is None else self._model.predict_e2e(features, law_ms)
            end_to_end = estimate(Target.E2E, trees, law_ms)
        return Prediction(
            endpoint_ids=situation.endpoint_ids,
            features=features,
            ttft=estimate(Target.TTFT, by_trees.get(Target.TTFT), law[Target.TTFT]),
            tpot=estimate(Target.TPOT, by_trees.get(Target.TPOT), law[Target.TPOT]),
            e2e=end_to_end,
            quantile=quantile,
            model_version=self.model_version,
        )

    def _prior_spread(self, rows: int) -> FloatArray:
        """The same for all; kept, as it is of one length as a rule. Not to be written to."""
        if len(self._spread) != rows:
            self._spread = np.full(rows, PRIOR_SPREAD)
        return self._spread

    def without_prediction(self, situation: Situation) -> Prediction:
        """The features alone, to learn from when there is no time for more: all estimates are NaN."""
        nothing = np.full(len(situation), np.nan)
        estimate = Estimate(nothing, nothing, nothing, nothing, Source.PRIOR)
        return Prediction(
            situation.endpoint_ids, feature_matrix(situation), estimate, estimate, None, None, self.model_version
        )

    def is_ready(self, target: Target) -> bool:
        """Whether enough real samples of this target were seen. Until then a heuristic is the better guide."""
        return self._prior.samples(target) >= self.options.ready_samples

    @property
    def ready(self) -> bool:
        """Ready for anything: for answers that stream, or for those that do not."""
        return self.is_ready(Target.TTFT) or self.is_ready(Target.E2E)

    def samples_of(self, endpoint_id: str) -> int:
        """How many samples of this endpoint were learned from: a new one has none, and has to be tried."""
        return self._samples.get(endpoint_id, 0)

    # --- observe ------------------------------------------------------------------------------------------------

    def observe(self, sample: Sample) -> None:
        """Judge what was promised, then learn from what came. What is no measurement is counted and dropped."""
        promise, actual_ms = sample.promise, sample.actual_ms
        if not _is_measurement(sample):
            self.dropped_samples += 1
            return
        level = load_level_of(promise.features)
        for target, promised in promise.targets.items():
            actual = actual_ms.get(target)
            if actual is None:
                continue
            if self._errors[target].observe(actual, promised.mean_ms, promised.bound_ms, promise.quantile):
                self._drifted = True
                self._calibration[target].shorten(_AFTER_DRIFT_SCORES)
            if promised.source is self._source(target):  # the law's errors are not the trees'
                self._calibration[target].observe(log(actual / promised.mean_ms) / promised.spread, level)
                self._bias[target].observe(sample.endpoint_id, log(actual / promised.base_ms))
        # The law is the pool's; what is this endpoint's own is not for it to learn.
        endpoint_id = sample.endpoint_id
        common = {
            target: actual / exp(self._bias[target].relative(endpoint_id)) for target, actual in actual_ms.items()
        }
        self._prior.learn(promise.features, common)
        self._buffer.add(sample)
        self._new_samples += 1
        self._samples[endpoint_id] = self._samples.pop(endpoint_id, 0) + 1
        if len(self._samples) > self.options.max_endpoints:
            self.forget(next(iter(self._samples)))
        if self._on_sample is not None:
            self._on_sample(sample)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint is gone for good: one that comes under its name is new."""
        self._samples.pop(endpoint_id, None)
        for bias in self._bias.values():
            bias.forget(endpoint_id)

    # --- learn --------------------------------------------------------------------------------------------------

    def training_due(self, now_s: float) -> TrainingJob | None:
        """A job for `train` if there is enough that is new, sooner when errors have grown; else `None`."""
        options = self.options
        interval_s = options.drift_interval_s if self._drifted else options.training_interval_s
        if self._last_job_s is not None and now_s - self._last_job_s < interval_s:
            return None
        if self._new_samples < options.training_min_new or len(self._buffer) < options.training_min_rows:
            return None
        self._last_job_s = now_s
        self._new_samples = 0
        self._drifted = False
        return TrainingJob(
            rows=self._buffer.rows(now_s),
            prior=self._prior.freeze(),
            champion=self._model,
            champion_version=self.model_version,
            now_s=now_s,
            half_life_s=options.half_life_s,
            min_rows=options.training_min_rows,
        )

    def publish(self, trained: TrainedModel) -> bool:
        """Serve what was trained, if it won on the newest rows against what is still being served."""
        if trained.champion_version != self.model_version:
            return False
        self._last_training = trained
        if trained.model is None:
            return False
        for target, handover in trained.handovers.items():
            self._bias[target].rebase(handover.offsets)
            if self._source(target) is Source.PRIOR:  # scores of trees, scaled by their spread, are like each other
                self._calibration[target].replace(handover.scores.tolist(), handover.levels.tolist())
        self._model = trained.model
        self._model_at_s = trained.trained_at_s
        self.model_version += 1
        return True

    def _source(self, target: Target) -> Source:
        return Source.MODEL if self._model is not None and target in self._model.targets else Source.PRIOR

    # --- look at, keep ------------------------------------------------------------------------------------------

    def model_age_s(self, now_s: float) -> float | None:
        """Since the rows of the served trees were taken; `None` while there are none."""
        return None if self._model_at_s is None else now_s - self._model_at_s

    def errors(self, target: Target) -> ServedErrors:
        """The served errors of one target."""
        return self._errors[target]

    def state(self, now_s: float) -> dict[str, Any]:
        """What there is to know, as plain values."""
        training = self._last_training
        return {
            "ready": {target.value: self.is_ready(target) for target in Target},
            "model_version": self.model_version,
            "model_age_s": self.model_age_s(now_s),
            "trees": {
                target.value: {
                    "weight": trees.weight,
                    "trained_rows": trees.trained_rows,
                    "score": trees.score,
                    "champion_score": trees.champion_score,
                }
                for target, trees in ({} if self._model is None else self._model.targets).items()
            },
            "last_training": None
            if training is None
            else {
                "age_s": now_s - training.trained_at_s,
                "rows": training.rows,
                "published": training.model is not None,
                "contests": {
                    target.value: {"challenger": contest.challenger, "champion": contest.champion}
                    for target, contest in training.contests.items()
                },
            },
            "prior_ms": self._prior.coefficients(),
            "served": {target.value: errors.summary().as_dict() for target, errors in self._errors.items()},
            "calibration_scores": {target.value: c.samples for target, c in self._calibration.items()},
            "bias_factor": {target.value: bias.factors() for target, bias in self._bias.items()},
            "endpoint_drifts": {target.value: bias.drifts for target, bias in self._bias.items()},
            "samples_by_endpoint": dict(self._samples),
            "buffer_rows": len(self._buffer),
            "dropped_samples": self.dropped_samples,
        }

    def snapshot(self, now_s: float, *, with_rows: bool = True) -> PredictorState:
        """What should survive a restart, copied: another thread may write it down.

        Without rows it is what another predictor can `adopt`.
        """
        rows = (self._buffer if with_rows else SampleBuffer(1, 1.0)).rows(now_s)
        return PredictorState(
            model=self._model,
            model_version=self.model_version,
            model_age_s=self.model_age_s(now_s),
            prior=self._prior.state(),
            bias={target.value: bias.state() for target, bias in self._bias.items()},
            calibration={target.value: calibration.state() for target, calibration in self._calibration.items()},
            samples_by_endpoint=dict(self._samples),
            rows=Rows(rows.features, rows.actual_ms, rows.at_s - now_s, rows.endpoint_ids, rows.bucket),
        )

    def restore(self, state: PredictorState, now_s: float) -> None:
        """Go on from a snapshot; for a new predictor. Raises ValueError, TypeError or KeyError if it is none."""
        self.adopt(state, now_s)
        rows = state.rows
        self._buffer.restore(rows.features, rows.actual_ms, rows.at_s + now_s, rows.endpoint_ids)

    def adopt(self, state: PredictorState, now_s: float) -> None:
        """Go on from what another predictor has learned, keeping one's own samples and served errors.

        Raises ValueError, TypeError or KeyError if this is no state of a predictor.
        """
        self._prior.restore(state.prior)
        for target in Target:
            self._bias[target] = EndpointBias(self.options.max_endpoints)
            self._bias[target].restore(state.bias[target.value])
            scores = state.calibration[target.value]
            self._calibration[target].restore(scores["all"], scores["levels"])
        self._samples = {str(key): int(count) for key, count in state.samples_by_endpoint.items()}
        self._model = state.model
        self.model_version = state.model_version
        self._model_at_s = None if state.model_age_s is None else now_s - state.model_age_s

    def trees(self) -> dict[str, bytes]:
        """By target, the served trees for log(ms), as XGBoost saves them."""
        return {target.value: of.mean for target, of in ({} if self._model is None else self._model.targets).items()}

    def rows(self, now_s: float) -> Rows:
        """The samples that models are trained on, copied."""
        return self._buffer.rows(now_s)

    def forget_samples(self) -> None:
        """What was learned stays; it is not trained on again."""
        self._buffer.clear()
        self._new_samples = 0

    def forget_errors(self) -> None:
        """Start the served errors anew."""
        self._errors = {target: ServedErrors() for target in Target}


def _is_measurement(sample: Sample) -> bool:
    if sample.promise.features.shape != (len(FEATURES),) or not sample.actual_ms or not isfinite(sample.at_s):
        return False
    for actual in sample.actual_ms.values():
        if not 0.0 < actual < inf:
            return False
    return all(promised.mean_ms > 0.0 and promised.base_ms > 0.0 for promised in sample.promise.targets.values())
