"""Training: rows in, a model out that has shown to be better on the newest rows, or nothing.

Pure and self-contained, for a thread of its own. The newest rows are held back; a target's new trees are kept only if
on these they beat what is being served, each allowed the bias per endpoint that it would have had by then. The errors
on the held-back rows also start the calibration of a target's first trees, for they have never seen those rows.

What the recipe rests on, measured in simulated pools under steady, swinging and mixed load:

* Trees on log(ms) under monotone constraints, in geometric mean with the prior law, had the lowest error of all that
  kept the constraints: 1 to 5 % below either alone. Trees on log(ms / law) under the same constraints cannot flatten
  the law where it is too steep, and were up to 10 % worse on mixed hardware.
* 60 trees of depth 4 and 100 of depth 3 did as well as 200 of depth 6.
* Quantile trees took fifteen times as long to train and covered 84 % where 90 % were asked for. Trees for the expected
  size of the error, scaled by conformal scores, covered 90 %, with a pinball loss a fifth below that without them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from epp.latency.boosters import opened, saved
from epp.latency.calibration import load_level
from epp.latency.features import FeatureMatrix, monotone_constraints
from epp.latency.jobs import Contest, Handover, TrainedModel, TrainingJob
from epp.latency.model import PRIOR_SPREAD, BaseEstimate, Model, TargetTrees, spread_of
from epp.latency.types import FloatArray, Target

_COMMON: dict[str, Any] = {
    "tree_method": "hist",
    "max_bin": 64,
    "nthread": 1,
    "seed": 0,
    "subsample": 0.8,
    "reg_lambda": 5.0,
    "verbosity": 0,
}
_MEAN = _COMMON | {"max_depth": 4, "eta": 0.1, "min_child_weight": 20, "colsample_bytree": 0.8}
_SPREAD = _COMMON | {"max_depth": 3, "eta": 0.15, "min_child_weight": 30}
_MEAN_TREES, _SPREAD_TREES = 60, 30
_HOLDOUT_RATIO, _HOLDOUT_MOST = 0.15, 1000
_RECENT_RATIO = 0.25  # of the rows trained on: what the bias per endpoint is taken from
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_CLIP = 2.5  # of a log error
_SHRINK_SAMPLES = 3.0
_BIAS_SAMPLES = 30.0  # at most what an endpoint's bias after training is worth
_SMALLEST_ERROR = 0.02


def train(job: TrainingJob) -> TrainedModel:
    """Train every target that has rows enough. One thread; 10,000 rows take well below a second."""
    rows = job.rows
    contests: dict[Target, Contest] = {}
    handovers: dict[Target, Handover] = {}
    winners: dict[Target, TargetTrees] = {}
    priors = job.prior.predict(rows.features)
    priors[Target.E2E] = job.prior.predict_e2e(rows.features, priors[Target.TTFT], priors[Target.TPOT])
    weights = _sample_weights(job)
    endpoint_ids, endpoints = np.unique(np.array(rows.endpoint_ids, dtype=object), return_inverse=True)
    for i, target in enumerate(Target):
        usable = np.flatnonzero(np.isfinite(rows.actual_ms[:, i]) & np.isfinite(priors[target]))
        if len(usable) < job.min_rows:
            continue
        champion = None if job.champion is None else job.champion.targets.get(target)
        task = _Task(
            target,
            rows.features[usable],
            np.log(rows.actual_ms[usable, i]),
            priors[target][usable],
            weights[usable],
            endpoints[usable],
            len(endpoint_ids),
        )
        trees, contest, handover = task.run(champion, endpoint_ids)
        contests[target] = contest
        if contest.won:
            winners[target], handovers[target] = trees, handover
    kept = {} if job.champion is None else job.champion.targets
    model = Model({**kept, **winners}) if winners else None
    return TrainedModel(model, contests, handovers, job.champion_version, job.now_s, len(rows))


@dataclass(frozen=True, slots=True)
class _Task:
    """One target's rows, oldest first."""

    target: Target
    features: FeatureMatrix
    log_actual: FloatArray
    prior_ms: FloatArray
    weights: FloatArray
    endpoints: npt.NDArray[np.intp]
    endpoint_count: int

    def run(
        self, champion: TargetTrees | None, endpoint_ids: npt.NDArray[np.object_]
    ) -> tuple[TargetTrees, Contest, Handover]:
        count = len(self.log_actual)
        split = count - min(max(1, round(count * _HOLDOUT_RATIO)), _HOLDOUT_MOST)
        old, new = slice(0, split), slice(split, count)
        recent = slice(split - max(1, round(split * _RECENT_RATIO)), split)
        served = (
            BaseEstimate(self.prior_ms, np.full(count, PRIOR_SPREAD))
            if champion is None
            else _evaluated(champion, self.features, self.prior_ms)
        )
        champion_score = self._score(self._errors(served.base_ms, recent, new))

        # The endpoints' differences are not the trees' business: they learn what is common to all.
        offsets = self._offsets(self.log_actual - np.log(self.prior_ms), old)
        offsets -= np.average(offsets[self.endpoints[old]], weights=self.weights[old])
        mean = self._boost(_MEAN, _MEAN_TREES, self.log_actual - offsets[self.endpoints], old, constrained=True)
        log_prior = np.log(self.prior_ms[old])
        log_prior_range = float(log_prior.min()), float(log_prior.max())
        trees = TargetTrees(saved(mean), b"", 0.0, log_prior_range, split, 0.0, 0.0)
        log_trees = mean.inplace_predict(self.features)
        joined = [trees.join(log_trees, self.prior_ms, weight) for weight in _WEIGHTS]
        scores = [self._score(self._errors(base_ms, recent, new)) for base_ms in joined]
        best = int(np.argmin(scores))
        base_ms = joined[best]

        errors = (
            self.log_actual - np.log(base_ms) - self._offsets(self.log_actual - np.log(base_ms), old)[self.endpoints]
        )
        spread = self._boost(_SPREAD, _SPREAD_TREES, np.log(np.abs(errors) + _SMALLEST_ERROR), old, constrained=False)
        trees = TargetTrees(
            trees.mean, saved(spread), _WEIGHTS[best], log_prior_range, split, scores[best], champion_score
        )
        held_back = _evaluated(trees, self.features[new], self.prior_ms[new])
        newest = slice(recent.start, count)
        handover = Handover(
            offsets=self._handed_offsets(base_ms, newest, endpoint_ids),
            scores=self._errors(base_ms, recent, new) / held_back.spread,
            levels=load_level(self.features[new]),
        )
        return trees, Contest(scores[best], champion_score, count - split), handover

    def _boost(
        self, parameters: dict[str, Any], rounds: int, label: FloatArray, rows: slice, *, constrained: bool
    ) -> xgboost.Booster:
        if constrained:
            parameters = parameters | {"monotone_constraints": monotone_constraints(self.target)}
        data = xgboost.DMatrix(self.features[rows], label=label[rows], weight=self.weights[rows], nthread=1)
        return xgboost.train(parameters, data, rounds)

    def _errors(self, base_ms: FloatArray, recent: slice, rows: slice) -> FloatArray:
        """Log errors of `rows` when each endpoint has the bias that `recent` shows."""
        errors = self.log_actual - np.log(base_ms)
        biased: FloatArray = errors[rows] - self._offsets(errors, recent)[self.endpoints[rows]]
        return biased

    def _score(self, errors: FloatArray) -> float:
        return float(np.mean(np.minimum(np.abs(errors), _CLIP)))

    def _offsets(self, errors: FloatArray, rows: slice) -> FloatArray:
        """Per endpoint, its mean error among `rows`, shrunk towards that of all."""
        clipped = np.clip(errors[rows], -_CLIP, _CLIP)
        overall = float(np.mean(clipped))
        sums = np.bincount(self.endpoints[rows], clipped - overall, minlength=self.endpoint_count)
        counts = np.bincount(self.endpoints[rows], minlength=self.endpoint_count)
        offsets: FloatArray = overall + sums / (counts + _SHRINK_SAMPLES)
        return offsets

    def _handed_offsets(
        self, base_ms: FloatArray, rows: slice, endpoint_ids: npt.NDArray[np.object_]
    ) -> dict[str, tuple[float, float]]:
        offsets = self._offsets(self.log_actual - np.log(base_ms), rows)
        counts = np.bincount(self.endpoints[rows], minlength=self.endpoint_count)
        return {
            str(endpoint_ids[i]): (float(offsets[i]), min(float(counts[i]), _BIAS_SAMPLES))
            for i in np.flatnonzero(counts)
        }


def _evaluated(trees: TargetTrees, features: FeatureMatrix, prior_ms: FloatArray) -> BaseEstimate:
    """By XGBoost itself."""
    log_trees, log_spread = (opened(saved_as).inplace_predict(features) for saved_as in (trees.mean, trees.spread))
    return BaseEstimate(trees.join(log_trees, prior_ms), spread_of(log_spread))


def _sample_weights(job: TrainingJob) -> FloatArray:
    """Mean 1: newer rows weigh more, and so do rows of rare situations."""
    if not len(job.rows):
        return np.ones(0)
    age_s = np.maximum(job.now_s - job.rows.at_s, 0.0)
    in_bucket = np.bincount(job.rows.bucket)[job.rows.bucket].astype(np.float64)
    weights: FloatArray = np.exp2(-age_s / job.half_life_s) * np.power(in_bucket, -0.25)
    return weights * (1.0 / float(weights.mean()))
