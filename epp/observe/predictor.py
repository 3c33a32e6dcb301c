"""Families about a predictor itself: is it ready, how old is its model, how good are its promises."""

from typing import Protocol

from epp.latency.errors import ServedErrors
from epp.latency.types import Target
from epp.observe.families import Families


class PredictorFigures(Protocol):
    """What is shown of a predictor."""

    model_version: int

    def is_ready(self, target: Target) -> bool: ...

    def model_age_s(self, now_s: float) -> float | None: ...

    def errors(self, target: Target) -> ServedErrors: ...


class PredictorMetrics:
    def __init__(self, families: Families) -> None:
        gauge = families.gauge
        by_target, by_quantile = ("target",), ("target", "quantile")
        self._ready = gauge("predictor_ready", "1 when predictions of this target are used.", by_target)
        self._version = gauge("predictor_model_version", "0 is the closed-form law alone.")
        self._age_s = gauge("predictor_model_age_seconds", "Since the served model was trained; absent without one.")
        self._error_s = gauge("predictor_error_seconds", "Mean absolute error of served predictions.", by_target)
        self._error_ratio = gauge("predictor_error_ratio", "Mean relative error of served predictions.", by_target)
        self._pinball_s = gauge("predictor_pinball_loss_seconds", "Mean pinball loss of served bounds.", by_quantile)
        self._coverage = gauge("predictor_coverage_ratio", "Share of requests within their bound.", by_quantile)
        self._remote = gauge("predictor_remote", "1 while what is predicted with was learned by a remote predictor.")

    def refresh(self, predictor: PredictorFigures, now_s: float) -> None:
        """Bring them up to date."""
        self._version[()].set(predictor.model_version)
        age_s = predictor.model_age_s(now_s)
        if age_s is not None:
            self._age_s[()].set(age_s)
        for target in Target:
            self._ready[target.value,].set(predictor.is_ready(target))
            served = predictor.errors(target).summary()
            if served.mean_absolute_ms is not None and served.mean_absolute_ratio is not None:
                self._error_s[target.value,].set(served.mean_absolute_ms / 1e3)
                self._error_ratio[target.value,].set(served.mean_absolute_ratio)
            for quantile, loss_ms in served.pinball_ms.items():
                self._pinball_s[target.value, f"{quantile:g}"].set(loss_ms / 1e3)
            for quantile, covered in served.coverage_ratio.items():
                self._coverage[target.value, f"{quantile:g}"].set(covered)

    def remote_is_relied_on(self, relied_on: bool) -> None:
        self._remote[()].set(relied_on)
