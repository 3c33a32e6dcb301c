"""What workloads are put together from: gaps between arrivals, and sessions that overlap."""

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from math import exp, log, sqrt
from typing import NamedTuple

from epp.lab.experiment import LabRequest
from epp.sim.workload import Lengths


class Lognormal(NamedTuple):
    """`mu` and `sigma` of the logarithm."""

    mu: float
    sigma: float

    @property
    def mean(self) -> float:
        return exp(self.mu + self.sigma**2 / 2)


def arrivals(rate_rps: float, gap_cv: float, rng: random.Random, start_s: float = 0.0) -> Iterator[float]:
    """Times of arrivals whose gaps are gamma: with a coefficient of variation of 1 Poisson, above it in bursts."""
    shape = gap_cv**-2
    at_s = start_s
    while True:
        at_s += rng.gammavariate(shape, 1.0 / (shape * rate_rps))
        yield at_s


@dataclass(frozen=True, slots=True)
class Bursts:
    """Arrivals in bursts of a geometric number of requests, each burst with a pace of its own.

    Attributes:
        requests: of a burst, on average.
        pace: seconds between two requests of a burst; drawn once for a burst, the gaps then are exponential.
        pause: seconds between two bursts. Only what these are to one another counts: the rate is given.
    """

    requests: float
    pace: Lognormal
    pause: Lognormal

    def arrivals(self, rate_rps: float, rng: random.Random) -> Iterator[float]:
        mean_gap_s = ((self.requests - 1) * self.pace.mean + self.pause.mean) / self.requests
        scale = 1.0 / (rate_rps * mean_gap_s)
        at_s = 0.0
        while True:
            gap_s = scale * rng.lognormvariate(*self.pace)
            at_s += scale * rng.lognormvariate(*self.pause)
            yield at_s
            while rng.random() >= 1.0 / self.requests:
                at_s += rng.expovariate(1.0 / gap_s)
                yield at_s


def of_mean_and_sd(mean: float, sd: float, most: int) -> Lengths:
    """Lognormal lengths with this mean and standard deviation before the cut at `most`."""
    variance = log(1.0 + (sd / mean) ** 2)
    return Lengths(log(mean) - variance / 2, sqrt(variance), most)


def zipf(count: int, exponent: float = 1.0) -> tuple[float, ...]:
    """Of `count` things, how often the first n of them are asked for together: the n-th in proportion to n^-exponent.
    Cumulative weights, for `random.choices`."""
    return tuple(accumulate((rank + 1) ** -exponent for rank in range(count)))


def log_uniform(low: float, high: float, ratio: float) -> int:
    """The length at this ratio (0..1) of a range, evenly spread in the logarithm."""
    return round(exp(log(low) + ratio * (log(high) - log(low))))


def interleaved(sessions: Iterable[Sequence[LabRequest]]) -> Iterator[LabRequest]:
    """The requests of sessions, which come in order of their first requests, in order of time, from 0 s on."""
    waiting: list[tuple[float, int, LabRequest]] = []
    order = count()
    for session in sessions:
        while waiting and waiting[0][0] <= session[0].at_s:
            yield heapq.heappop(waiting)[2]
        for request in session:
            if request.at_s >= 0.0:
                heapq.heappush(waiting, (request.at_s, next(order), request))
    while waiting:
        yield heapq.heappop(waiting)[2]
