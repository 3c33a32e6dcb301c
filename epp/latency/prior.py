"""The prior: how an engine that works in steps must behave, with coefficients learned as it goes.

A step reads the model once, computes the prompt tokens that are scheduled into it, and advances every running sequence.
Hence, with all coefficients at least 0:

    TTFT = base + a · uncached tokens of this request + b · those before it + c · active requests + d · waiting requests
    TPOT = base + a · active requests + b · uncached tokens before it + c · context tokens of the decoding requests
    E2E  = TTFT · s + TPOT · (a · max_output_tokens + b), or TPOT · c when the request has no cap

Such a law is sensible before the first sample (the constants are those of an 8B model on an H100), knows what happens
at loads never seen, and never says that more work takes less time. Trees are better only where there are many samples.

The coefficients are a discounted least-squares fit of *relative* errors, by its normal equations: an update costs the
square of a handful of terms. A sample that is off by more than a factor of four counts as off by four.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from epp.latency.features import COLUMN, FEATURES, NEEDED_COLUMNS, FeatureMatrix
from epp.latency.types import FloatArray, Target

_DISCOUNT = 0.9995  # per sample: some 2,000 samples are remembered
_TRUST_IN_DEFAULT = 0.02  # in samples that a term explains alone: little, as terms that matter explain small shares
_CLIP = 4.0
_EAGER_SAMPLES, _LAZY_SAMPLES = 256, 16  # so long the fit is renewed with every sample, then with every 16th
_SWEEPS = 6
_LEAST_BASE = 0.01  # of its default: nothing takes no time at all


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """Which columns a target is linear in, the intercept first (no column), and the coefficients' defaults, in ms."""

    terms: tuple[tuple[str | None, float], ...]
    columns: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(COLUMN[name] for name, _ in self.terms if name is not None))

    @property
    def defaults(self) -> tuple[float, ...]:
        return tuple(value for _, value in self.terms)


# Llama 3.1 8B on one H100 under vLLM 0.11, fitted to public measurements: a step takes 7.2 ms, 18.5 µs per prefill
# token and 34 µs per sequence; HTTP, templates and tokenisation add some 18 ms; a request waits half a step at first.
LAWS: Mapping[Target, LinearLaw] = MappingProxyType(
    {
        Target.TTFT: LinearLaw(
            (
                (None, 28.0),
                ("uncached_tokens", 0.0185),
                ("prefill_tokens_before", 0.0185),
                ("active_requests", 0.05),
                ("waiting_requests", 10.0),
            )
        ),
        Target.TPOT: LinearLaw(
            (
                (None, 7.2),
                ("active_requests", 0.1),
                ("prefill_tokens_before", 0.0002),
                ("decode_tokens_in_flight", 0.0001),
            )
        ),
    }
)
_NEEDED_BY_LAWS = sorted({column for target in LAWS for column in NEEDED_COLUMNS[target]})
_E2E_DEFAULTS = (1.0, 0.5, 50.0, 200.0)


class NonNegativeFit:
    """Discounted least squares with coefficients ≥ 0, drawn towards `defaults` until samples speak.

    The first stays above 0, so that what it stands for (the base; of E2E, its TTFT) is in every prediction.
    """

    def __init__(self, defaults: Sequence[float]) -> None:
        size = len(defaults)
        self._scale = np.array(defaults, dtype=np.float64)  # coefficients are fitted in units of their defaults
        self._gram = np.zeros((size, size))
        self._moment = np.zeros(size)
        self._waiting: list[tuple[Sequence[float], float, float]] = []  # terms, expected, actual
        self.samples = 0
        self._use([1.0] * size)

    def learn(self, terms: Sequence[float], actual: float) -> bool:
        """One observation `actual ≈ terms · coefficients`, weighted by the relative error it makes.

        Samples between two renewals of the fit only wait for the next one: added up together they cost 3 µs each, one
        by one 30. Returns whether the coefficients have changed.
        """
        expected = 0.0
        for term, coefficient in zip(terms, self.coefficients, strict=True):
            expected += term * coefficient
        if not expected > 0.0:  # the terms are no numbers
            return False
        self._waiting.append((terms, expected, actual))
        self.samples += 1
        if self.samples > _EAGER_SAMPLES and self.samples % _LAZY_SAMPLES:
            return False
        self._add_up()
        self._solve()
        return True

    def _add_up(self) -> None:
        """Take what waits into the normal equations, each sample discounted by those after it."""
        if not self._waiting:
            return
        terms, expected, actual = (np.array(column, dtype=np.float64) for column in zip(*self._waiting, strict=True))
        ages = np.arange(len(actual), dtype=np.float64)[::-1]
        self._waiting.clear()
        ratio = np.minimum(np.maximum(actual / expected, 1.0 / _CLIP), _CLIP)
        scaled = terms * self._scale / expected[:, np.newaxis]
        weighted = scaled * np.power(_DISCOUNT, ages)[:, np.newaxis]
        discount = _DISCOUNT ** len(actual)
        self._gram = self._gram * discount + weighted.T @ scaled
        self._moment = self._moment * discount + ratio @ weighted

    def _solve(self) -> None:
        """Coordinate descent on the normal equations from where the last one ended; each coordinate stays ≥ 0."""
        # Plain numbers: for a handful of terms numpy's calls alone cost five times as much as the arithmetic.
        gram, moment, solution = self._gram.tolist(), self._moment.tolist(), self._solution
        for _ in range(_SWEEPS):
            for i, row in enumerate(gram):
                pull = moment[i] + row[i] * solution[i]
                for g, value in zip(row, solution, strict=True):
                    pull -= g * value
                solution[i] = max(
                    _LEAST_BASE if i == 0 else 0.0, (pull + _TRUST_IN_DEFAULT) / (row[i] + _TRUST_IN_DEFAULT)
                )
        self._use(solution)

    def _use(self, solution: list[float]) -> None:
        self._solution = solution
        self.coefficients: list[float] = (self._scale * solution).tolist()

    def state(self) -> dict[str, Any]:
        self._add_up()
        return {
            "samples": self.samples,
            "gram": self._gram.tolist(),
            "moment": self._moment.tolist(),
            "solution": list(self._solution),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or KeyError if this is not the state of such a fit."""
        gram, moment = np.array(state["gram"], dtype=np.float64), np.array(state["moment"], dtype=np.float64)
        solution = np.array(state["solution"], dtype=np.float64)
        if gram.shape != self._gram.shape or moment.shape != self._moment.shape or solution.shape != moment.shape:
            raise ValueError("the prior has other terms")
        if not (np.isfinite(gram).all() and np.isfinite(moment).all() and (solution >= 0.0).all()):
            raise ValueError("the prior's coefficients are no numbers")
        solution[0] = max(solution[0], _LEAST_BASE)
        self._gram, self._moment = gram, moment
        self._waiting.clear()
        self.samples = int(state["samples"])
        self._use(solution.tolist())


@dataclass(frozen=True, slots=True)
class FrozenPrior:
    """The laws with the coefficients of one moment, for training in another thread.

    Attributes:
        weights: (features, 2): TTFT and TPOT are linear in the features.
        intercepts: (2,).
        e2e: the four coefficients of E2E.
    """

    weights: FloatArray
    intercepts: FloatArray
    e2e: FloatArray

    def predict(self, features: FeatureMatrix) -> dict[Target, FloatArray]:
        """Milliseconds per row and target; NaN where a column is missing that the target needs."""
        known = np.fmax(features.T, 0.0, dtype=np.float64)  # no feature is negative; a missing one is 0 here
        ttft, tpot = self.weights.T @ known + self.intercepts[:, np.newaxis]
        needed = np.minimum.reduce(features.T[_NEEDED_BY_LAWS], axis=None, initial=0.0)
        if needed != needed:  # which is rare: it is NaN if any of them is
            for target, values in ((Target.TTFT, ttft), (Target.TPOT, tpot)):
                for column in NEEDED_COLUMNS[target]:
                    np.copyto(values, np.nan, where=np.isnan(features[:, column]))
        return {Target.TTFT: ttft, Target.TPOT: tpot}

    def predict_e2e(self, features: FeatureMatrix, ttft: FloatArray, tpot: FloatArray) -> FloatArray:
        """Milliseconds per row, given the same rows' prior TTFT and TPOT."""
        values: FloatArray = (_e2e_terms(features, ttft, tpot) @ self.e2e).astype(np.float64)
        return values


class Prior:
    """The three laws, learning. For use from one thread."""

    def __init__(self) -> None:
        self._fits = {target: NonNegativeFit(law.defaults) for target, law in LAWS.items()}
        self._fits[Target.E2E] = NonNegativeFit(_E2E_DEFAULTS)
        self._frozen: FrozenPrior | None = None

    def freeze(self) -> FrozenPrior:
        """The laws as of now; the same object until something is learned."""
        if self._frozen is None:
            weights = np.zeros((len(FEATURES), 2))
            intercepts = np.zeros(2)
            for j, (target, law) in enumerate(LAWS.items()):
                coefficients = self._fits[target].coefficients
                intercepts[j] = coefficients[0]
                weights[list(law.columns), j] = coefficients[1:]
            self._frozen = FrozenPrior(weights, intercepts, np.array(self._fits[Target.E2E].coefficients))
        return self._frozen

    def learn(self, features: npt.NDArray[np.float32], actual_ms: Mapping[Target, float]) -> None:
        """One row of features and what came of it, without the bias of its endpoint."""
        row = features.tolist()
        changed = False
        for target, law in LAWS.items():
            if target in actual_ms and not any(isnan(row[i]) for i in NEEDED_COLUMNS[target]):
                terms = [1.0, *(0.0 if isnan(row[i]) else row[i] for i in law.columns)]
                changed |= self._fits[target].learn(terms, actual_ms[target])
        if Target.E2E in actual_ms:
            if changed:
                self._frozen = None
            base = self.freeze().predict(features[np.newaxis])
            e2e_terms = _e2e_terms(features[np.newaxis], base[Target.TTFT], base[Target.TPOT])[0]
            if np.isfinite(e2e_terms).all():
                changed |= self._fits[Target.E2E].learn(e2e_terms.tolist(), actual_ms[Target.E2E])
        if changed:
            self._frozen = None

    def samples(self, target: Target) -> int:
        """How many were learned from."""
        return self._fits[target].samples

    def coefficients(self) -> dict[str, dict[str, float]]:
        """By target and term, for people."""
        named: dict[str, dict[str, float]] = {
            target.value: {
                name or "base": float(value)
                for (name, _), value in zip(law.terms, self._fits[target].coefficients, strict=True)
            }
            for target, law in LAWS.items()
        }
        e2e = self._fits[Target.E2E].coefficients
        names = ("ttft", "tpot_x_max_output_tokens", "tpot_when_capped", "tpot_without_cap")
        named[Target.E2E.value] = dict(zip(names, map(float, e2e), strict=True))
        return named

    def state(self) -> dict[str, Any]:
        return {target.value: fit.state() for target, fit in self._fits.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or KeyError if this is not the state of a prior."""
        for target, fit in self._fits.items():
            fit.restore(state[target.value])
        self._frozen = None


def _e2e_terms(features: FeatureMatrix, ttft: FloatArray, tpot: FloatArray) -> FloatArray:
    cap = features[:, COLUMN["max_output_tokens"]].astype(np.float64)
    capped = ~np.isnan(cap)
    return np.stack([ttft, tpot * np.where(capped, cap, 0.0), tpot * capped, tpot * ~capped], axis=1)
