"""How good the served predictions are: predict, then observe, and only then learn.

Every figure here compares what was promised at the decision with what came, so none of it can be flattered by training.
When the errors of late are much larger than those before, the pool has changed as a whole, and it is time for
another model.
"""

from collections import deque
from dataclasses import asdict, dataclass
from math import log
from typing import Any

_SLOW, _FAST = 0.005, 0.05
_DRIFT_RATIO = 1.6  # errors of late this many times those before
_DRIFT_MIN_SAMPLES = 100
_CLIP = 2.5


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """One target's served errors over a sliding window. `None` without samples, or without bounds asked for.

    Attributes:
        samples: in the window.
        mean_absolute_ms: mean |actual - predicted|.
        mean_absolute_ratio: mean |actual - predicted| / actual (MAPE).
        median_absolute_ratio: its median.
        mean_log_ratio: mean log(actual / predicted); above 0, predictions are too low.
        pinball_ms: by quantile asked for, mean pinball loss of the bounds.
        coverage_ratio: by quantile asked for, the share of actual values not above their bound.
    """

    samples: int
    mean_absolute_ms: float | None
    mean_absolute_ratio: float | None
    median_absolute_ratio: float | None
    mean_log_ratio: float | None
    pinball_ms: dict[float, float]
    coverage_ratio: dict[float, float]

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        plain = asdict(self)
        for name in ("pinball_ms", "coverage_ratio"):
            plain[name] = {f"{q:g}": value for q, value in plain[name].items()}
        return plain


class ServedErrors:
    """The served errors of one target. For use from one thread.

    Args:
        window: how many of the last promises count, and for each quantile how many of the last bounds.
        max_quantiles: so many different quantiles are told apart; the one not asked for longest is forgotten.
    """

    def __init__(self, window: int = 1000, max_quantiles: int = 8) -> None:
        self._window = window
        self._max_quantiles = max_quantiles
        self._pairs: deque[tuple[float, float]] = deque(maxlen=window)
        self._bounds: dict[float, deque[tuple[float, float]]] = {}
        self._slow = self._fast = 0.0
        self._since_change = 0
        self.samples_total = 0

    def observe(self, actual_ms: float, predicted_ms: float, bound_ms: float, quantile: float | None) -> bool:
        """Count one promise. True if by this one the errors have become much larger than they were."""
        self.samples_total += 1
        self._pairs.append((actual_ms, predicted_ms))
        if quantile is not None:
            bounds = self._bounds.pop(quantile, None)
            if bounds is None:
                bounds = deque(maxlen=self._window)
                if len(self._bounds) >= self._max_quantiles:
                    self._bounds.pop(next(iter(self._bounds)))
            self._bounds[quantile] = bounds
            bounds.append((actual_ms, bound_ms))
        error = min(abs(log(actual_ms / predicted_ms)), _CLIP)
        self._since_change += 1
        self._slow += max(_SLOW, 1.0 / self._since_change) * (error - self._slow)
        self._fast += max(_FAST, 1.0 / self._since_change) * (error - self._fast)
        if self._since_change < _DRIFT_MIN_SAMPLES or self._fast < _DRIFT_RATIO * self._slow:
            return False
        self._slow = self._fast
        self._since_change = 1
        return True

    def summary(self) -> ErrorSummary:
        """Over the window; costs a pass over it."""
        pairs = self._pairs
        count = len(pairs)
        ratios = sorted(abs(actual - predicted) / actual for actual, predicted in pairs)
        return ErrorSummary(
            samples=count,
            mean_absolute_ms=sum(abs(a - p) for a, p in pairs) / count if count else None,
            mean_absolute_ratio=sum(ratios) / count if count else None,
            median_absolute_ratio=ratios[count // 2] if count else None,
            mean_log_ratio=sum(log(a / p) for a, p in pairs) / count if count else None,
            pinball_ms={q: _pinball(q, list(bounds)) for q, bounds in sorted(self._bounds.items())},
            coverage_ratio={
                q: sum(actual <= bound for actual, bound in bounds) / len(bounds)
                for q, bounds in sorted(self._bounds.items())
            },
        )


def _pinball(q: float, bounds: list[tuple[float, float]]) -> float:
    return sum(max(q * (actual - bound), (q - 1.0) * (actual - bound)) for actual, bound in bounds) / len(bounds)
