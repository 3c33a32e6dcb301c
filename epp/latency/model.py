"""The trained model: trees for the logarithm of each target and for its uncertainty, joined with the prior law.

Each target has two boosters: one for log(ms), one for the logarithm of the error to expect. The point prediction is a
geometric mean of the trees' word and the law's: the trees know the bends that the law has not, the law is smooth where
the trees are steps, and knows what comes after the last sample. Where the law leaves the range that the trees were
trained in, they stand still, and the prediction follows the law alone. Both parts only rise with load, so it does too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from epp.latency.features import FeatureMatrix
from epp.latency.trees import FlatTrees
from epp.latency.types import FloatArray, Target

# Relative errors below 2 % are luck, above a factor of 4 the model says nothing.
_LOG_SPREADS = (log(0.02), log(1.5))
PRIOR_SPREAD = 1.0
"""What stands for the spread where there are no trees: all rows are equally uncertain."""


class BaseEstimate(NamedTuple):
    """One target without the endpoints' bias: milliseconds and spread per row."""

    base_ms: FloatArray
    spread: FloatArray


@dataclass(frozen=True, slots=True)
class TargetTrees:
    """One target's trees.

    Attributes:
        mean, spread: predict log(ms) and log(expected |log error|); as XGBoost saves them, see `epp.latency.boosters`.
        weight: of the trees against the law, 0..1.
        log_prior_range: the law's lowest and highest log(ms) among the rows trained on.
        trained_rows: how many those were.
        score, champion_score: mean |log error| on the newest rows, of this model and of what was served until then.
    """

    mean: bytes
    spread: bytes
    weight: float
    log_prior_range: tuple[float, float]
    trained_rows: int
    score: float
    champion_score: float

    def join(self, log_trees: npt.NDArray[np.float32], prior_ms: FloatArray, weight: float | None = None) -> FloatArray:
        """Trees and law together, in ms; NaN where the law has no prediction."""
        share = self.weight if weight is None else weight
        log_prior = np.log(prior_ms)
        within = np.minimum(np.maximum(log_prior, self.log_prior_range[0]), self.log_prior_range[1])
        # share · (trees + what the law says beyond the range) + (1 - share) · law
        joined: FloatArray = np.exp(log_prior + share * (log_trees - within))
        return joined


class Model:
    """The trees of all targets that have some, ready to be evaluated together. For use from one thread.

    To make one takes XGBoost; one that came from another process is ready. Raises ValueError if the trees are of a kind
    that it cannot evaluate.
    """

    def __init__(self, targets: Mapping[Target, TargetTrees]) -> None:
        self.targets = dict(targets)
        self._streamed = [target for target in (Target.TTFT, Target.TPOT) if target in targets]
        streamed = [self.targets[target] for target in self._streamed]
        self._trees = _flat(streamed)
        # A row per target, to be broadcast over its candidates.
        self._weights = np.array([[of.weight] for of in streamed])
        self._lowest = np.array([[of.log_prior_range[0]] for of in streamed])
        self._highest = np.array([[of.log_prior_range[1]] for of in streamed])
        self._e2e_trees = _flat([self.targets[Target.E2E]] if Target.E2E in targets else [])

    def predict(self, features: FeatureMatrix, prior: Mapping[Target, FloatArray]) -> dict[Target, BaseEstimate]:
        """TTFT and TPOT, those that have trees; `prior` has the law's word on them."""
        if self._trees is None:
            return {}
        outputs = self._trees.predict(features).T
        log_prior = np.log(np.array([prior[target] for target in self._streamed]))
        # As `TargetTrees.join`, for all targets at once.
        within = np.minimum(np.maximum(log_prior, self._lowest), self._highest)
        base_ms = np.exp(log_prior + self._weights * (outputs[0::2] - within))
        spread = spread_of(outputs[1::2])
        return {target: BaseEstimate(base_ms[i], spread[i]) for i, target in enumerate(self._streamed)}

    def predict_e2e(self, features: FeatureMatrix, prior_ms: FloatArray) -> BaseEstimate | None:
        """E2E, if it has trees."""
        if self._e2e_trees is None:
            return None
        outputs = self._e2e_trees.predict(features)
        return BaseEstimate(self.targets[Target.E2E].join(outputs[:, 0], prior_ms), spread_of(outputs[:, 1]))


def spread_of(log_spread: npt.NDArray[np.float32]) -> FloatArray:
    """The spread from what the trees say of its logarithm, within sensible limits."""
    return np.exp(np.minimum(np.maximum(log_spread, _LOG_SPREADS[0]), _LOG_SPREADS[1]), dtype=np.float64)


def _flat(targets: list[TargetTrees]) -> FlatTrees | None:
    if not targets:
        return None
    from epp.latency.boosters import opened  # whoever makes a model has trained it, or read it from a file

    return FlatTrees([opened(trees) for of in targets for trees in (of.mean, of.spread)])
