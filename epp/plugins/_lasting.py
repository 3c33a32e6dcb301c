"""How much of what one server has more of than the others lasts while an answer is made.

Answers end, and others come elsewhere. Of a burst on one server little is left while the next answer is made; where
load is heavy and answers are many, who is ahead stays ahead. Which it is shows when answers end: what was there on
average while each was made, against what was there when it was sent. So it is the slope of the one over the other,
both as differences to the pool's mean at the decision.
"""

from epp.scheduling.data import FloatArray

_ANSWERS = 300  # so many are remembered
_TAKEN = 50.0  # requests squared: until more is known, all lasts


class Lasting:
    """Two exponentially fading sums, of squares and of products."""

    def __init__(self) -> None:
        self._squares = self._products = 0.0

    def add(self, more: float, more_on_average: float) -> None:
        """An answer: by how many requests its server had more than the mean of the pool, below 0 if fewer, when it was
        sent and on average while it was made."""
        keep = 1.0 - 1.0 / _ANSWERS
        self._squares = self._squares * keep + more * more
        self._products = self._products * keep + more * more_on_average

    def on_average(self, now: FloatArray) -> FloatArray:
        """What is to be expected while an answer is made, from what the candidates have now."""
        mean = now.mean()
        expected: FloatArray = mean + self.ratio * (now - mean)
        return expected

    @property
    def ratio(self) -> float:
        """From 0, where nothing lasts, to 1."""
        return min(max((self._products + _TAKEN) / (self._squares + _TAKEN), 0.0), 1.0)
