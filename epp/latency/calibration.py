"""Upper bounds that hold: conformal prediction on the errors of what was really served.

The score of a sample is log(actual / predicted) / spread. The one of rank ⌈q·(n+1)⌉ among the last n is not exceeded
by the next with probability q, whatever the distribution and however wrong the model, as long as the next is like the
last (Vovk et al.; Lei et al. 2018 for scaled scores). Errors depend on load, so scores are kept by load level: a bound
that holds on average but not when it is needed would be of no use.

Before there are enough scores, the bound is the wider one of what was seen and of a lognormal error of sensible size.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from math import ceil, isfinite
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from epp.latency.features import COLUMN, FeatureMatrix
from epp.latency.types import FloatArray

_ACTIVE = COLUMN["active_requests"]
# Load levels by active requests: two for each power of two.
_LEVEL_EDGES = np.array([4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256], dtype=np.float32)
_EDGES = tuple(_LEVEL_EDGES.tolist())
LEVELS = len(_LEVEL_EDGES) + 1
_NORMAL = NormalDist()
_FEW = 20  # scores: below, the assumed error has a say
_EAGER_SAMPLES, _LAZY_SAMPLES = 256, 16  # so long every score counts at once, then the factors follow every 16th
_MOST_TABLES = 64


def load_level(features: FeatureMatrix) -> npt.NDArray[np.intp]:
    """The level of each row, 0 .. LEVELS - 1; rows of unknown load count as the highest."""
    return np.searchsorted(_LEVEL_EDGES, features[:, _ACTIVE], side="right")


def load_level_of(features: npt.NDArray[np.float32]) -> int:
    """The level of one row: the same, for a twentieth of what numpy takes for it."""
    active = float(features[_ACTIVE])
    return bisect_right(_EDGES, active) if active == active else LEVELS - 1


class _Window:
    """The last scores, and the same in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.recent: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, score: float) -> None:
        if len(self.recent) >= self._size:
            self._forget_oldest()
        self.recent.append(score)
        insort(self.ordered, score)

    def fill(self, scores: list[float]) -> None:
        """Start anew with these, oldest first. Raises ValueError if one is no number."""
        if not all(map(isfinite, scores)):
            raise ValueError("a score is no number")
        self.recent = deque(scores[-self._size :])
        self.ordered = sorted(self.recent)

    def shorten(self, keep: int) -> None:
        while len(self.recent) > keep:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        del self.ordered[bisect_left(self.ordered, self.recent.popleft())]

    def quantile(self, q: float) -> float | None:
        """The score that the next one does not exceed with probability `q`; `None` if there are too few to say."""
        rank = ceil(q * (len(self.ordered) + 1) - 1e-9)
        return self.ordered[max(rank, 1) - 1] if rank <= len(self.ordered) else None


class Calibrator:
    """The bounds of one target. For use from one thread.

    Args:
        window: scores remembered per load level, and of all levels together.
        level_min: so many scores a level needs to speak for itself.
        assumed_score: standard deviation of the scores before there are any.
    """

    def __init__(self, window: int = 2000, level_min: int = 40, assumed_score: float = 1.0) -> None:
        self._level_min = level_min
        self._assumed = assumed_score
        self._all = _Window(window)
        self._levels = [_Window(window) for _ in range(LEVELS)]
        self._tables: dict[float, FloatArray] = {}  # by quantile, the factor of each level
        self._observed = 0

    @property
    def samples(self) -> int:
        """How many scores the bounds rest on."""
        return len(self._all.recent)

    def observe(self, score: float, level: int) -> None:
        self._all.add(score)
        self._levels[level].add(score)
        self._observed += 1
        if self.samples < _EAGER_SAMPLES or self._observed % _LAZY_SAMPLES == 0:
            self._tables.clear()

    def factors(self, q: float, levels: npt.NDArray[np.intp]) -> FloatArray:
        """What to multiply each row's spread with, so that exp(that) times its prediction is its bound at `q`."""
        table = self._tables.get(q)
        if table is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            overall = self._overall(q)
            table = self._tables[q] = np.array([self._of_level(q, window, overall) for window in self._levels])
        return table[levels]

    def _overall(self, q: float) -> float:
        seen = self._all.quantile(q)
        if seen is None or len(self._all.recent) < _FEW:
            # Beyond what was seen: as far as the assumed error would go, and never below the largest seen, so that a
            # higher quantile is never a lower bound.
            assumed = self._assumed * _NORMAL.inv_cdf(q)
            largest = self._all.ordered[-1] if self._all.ordered else assumed
            return max(assumed, largest if seen is None else seen)
        return seen

    def _of_level(self, q: float, window: _Window, overall: float) -> float:
        if len(window.recent) < self._level_min:
            return overall
        own = window.quantile(q)
        return own if own is not None else max(overall, window.ordered[-1])

    def shorten(self, keep: int) -> None:
        """Forget all but the newest scores: the world has changed."""
        for window in (self._all, *self._levels):
            window.shorten(keep)
        self._tables.clear()

    def replace(self, scores: Iterable[float], levels: Iterable[int]) -> None:
        """Start anew with these scores, oldest first: another model makes other errors."""
        self.shorten(0)
        for score, level in zip(scores, levels, strict=True):
            self.observe(score, level)

    def state(self) -> dict[str, list[float] | list[list[float]]]:
        return {"all": list(self._all.recent), "levels": [list(window.recent) for window in self._levels]}

    def restore(self, everything: Iterable[float], levels: Iterable[Iterable[float]]) -> None:
        """What `state` gave. Raises ValueError or TypeError for anything else."""
        self.shorten(0)
        for window, scores in zip((self._all, *self._levels), (everything, *levels), strict=True):
            window.fill([float(score) for score in scores])
