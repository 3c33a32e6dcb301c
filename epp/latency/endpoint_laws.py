"""How fast each server is: a linear law of its own for every endpoint, learned from what it answered.

`epp.latency.prior` has one law for the pool, and a factor per server on top. Where hardware differs that is not enough:
by the step laws of `epp.sim.timing` an A100 prefills at a third of an H100's pace, and decodes at two thirds of it.
Here every endpoint has coefficients of its own. While its samples are few they are drawn towards the pool's, and a bias
on top of them follows when the server changes.

What is known of a server is as old as its last answer. Who looks slow by a little, or was slow for a while, has no
requests where load is light, and so no chance to show that it no longer is. So what sets a server apart fades while the
others answer and it does not; it is tried again, and learned again.
"""

from collections.abc import Mapping, Sequence
from math import exp, log

import numpy as np

from epp.latency.bias import EndpointBias
from epp.latency.prior import NonNegativeFit
from epp.latency.types import FloatArray

_POOLED_SAMPLES = 20.0  # with so many of its own, an endpoint's law is half its own and half the pool's
_TURNS_MISSED, _TURNS_TO_FADE = 30.0, 10.0  # answers by the pool, per endpoint: so many without one of its own
_ASSUMED_SPREAD, _ASSUMED_SAMPLES = 0.3, 10
_SPREAD_SAMPLES = 200  # so many the spread remembers
_CLIP = 2.5  # one sample says at most "12 times slower"
_TO_DEVIATION = 1.25  # from the mean absolute to the standard deviation of a normal distribution


class EndpointLaws:
    """One target in ms, linear in the same terms for every endpoint. For use from one thread.

    Args:
        defaults: the coefficients before anything is known, all above 0; the first is that of the constant.

    Attributes:
        spread: standard deviation of log(actual / expected), of late.
    """

    def __init__(self, defaults: Sequence[float]) -> None:
        self._defaults = tuple(defaults)
        self._pool = NonNegativeFit(defaults)
        self._own: dict[str, NonNegativeFit] = {}
        self._answers = 0  # of the pool
        self._last: dict[str, int] = {}  # of these, by endpoint
        self._aging_row = 0
        self._bias = EndpointBias()
        self._observed = _ASSUMED_SAMPLES
        self.spread = _ASSUMED_SPREAD
        # The coefficients of the endpoints last asked for; kept up to date, as the same are asked for again and again.
        self._asked: Sequence[str] = ()
        self._row_by_id: dict[str, int] = {}
        self._coefficients: FloatArray = np.zeros((len(defaults), 0))

    def observe(self, endpoint_id: str, terms: Sequence[float], actual_ms: float) -> None:
        """Learn from one answer: what its terms were, and what it took, above 0."""
        own = self._own.get(endpoint_id)
        if own is None:
            own = self._own[endpoint_id] = NonNegativeFit(self._defaults)
        expected_ms = sum(c * term for c, term in zip(self._blended(own), terms, strict=True))
        if not (expected_ms > 0.0 and actual_ms > 0.0):
            return
        log_ratio = min(max(log(actual_ms / expected_ms), -_CLIP), _CLIP)
        surprise = abs(log_ratio - float(self._bias.of((endpoint_id,))[0]))
        self._observed += 1
        self.spread += (_TO_DEVIATION * surprise - self.spread) / min(self._observed, _SPREAD_SAMPLES)
        self._bias.observe(endpoint_id, log_ratio)
        self._pool.learn(terms, actual_ms)
        own.learn(terms, actual_ms)
        self._answers += 1
        self._last[endpoint_id] = self._answers
        row = self._row_by_id.get(endpoint_id)
        if row is not None:
            self._coefficients[:, row] = self._of(endpoint_id)
            self._age_one()

    def of(self, endpoint_ids: Sequence[str]) -> FloatArray:
        """(terms, endpoints), not to be written to. Cheap for the very same sequence as the last time."""
        if endpoint_ids is not self._asked:
            self._asked = endpoint_ids
            self._row_by_id = {endpoint_id: row for row, endpoint_id in enumerate(endpoint_ids)}
            self._coefficients = np.array([self._of(endpoint_id) for endpoint_id in endpoint_ids]).T.copy()
        return self._coefficients

    def keep(self, endpoint_ids: Mapping[str, int]) -> None:
        """Forget all other endpoints: they have left the pool."""
        for endpoint_id in [known for known in self._own if known not in endpoint_ids]:
            del self._own[endpoint_id], self._last[endpoint_id]
            self._bias.forget(endpoint_id)

    def state(self) -> dict[str, object]:
        """For people: the pool's coefficients, the spread, and by endpoint the coefficients and how many samples."""
        return {
            "pool": list(self._pool.coefficients),
            "spread": self.spread,
            "endpoints": {
                endpoint_id: {"coefficients": self._of(endpoint_id).tolist(), "samples": own.samples}
                for endpoint_id, own in self._own.items()
            },
        }

    def _age_one(self) -> None:
        """Bring one endpoint up to date, the next each time: all in turn, for little at once."""
        self._aging_row = (self._aging_row + 1) % len(self._asked)
        endpoint_id = self._asked[self._aging_row]
        if self._freshness(endpoint_id) < 1.0:
            self._coefficients[:, self._aging_row] = self._of(endpoint_id)

    def _freshness(self, endpoint_id: str) -> float:
        """From 1 down to 0, for who has not answered for long while others have."""
        last = self._last.get(endpoint_id)
        if last is None:
            return 1.0
        missed = (self._answers - last) / len(self._own) - _TURNS_MISSED
        return exp(-missed / _TURNS_TO_FADE) if missed > 0.0 else 1.0

    def _of(self, endpoint_id: str) -> FloatArray:
        fresh = self._freshness(endpoint_id)
        factor = exp(fresh * float(self._bias.of((endpoint_id,))[0]))
        return np.array(self._blended(self._own.get(endpoint_id), fresh)) * factor

    def _blended(self, own: NonNegativeFit | None, fresh: float = 1.0) -> list[float]:
        if own is None:
            return self._pool.coefficients
        share = fresh * own.samples / (own.samples + _POOLED_SAMPLES)
        return [p + share * (o - p) for o, p in zip(own.coefficients, self._pool.coefficients, strict=True)]
