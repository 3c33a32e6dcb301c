"""What a workload is, and how one becomes the schedule of a run."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, Protocol

from epp.lab.experiment import LabRequest
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER


class Targets(NamedTuple):
    """What a request should keep: time to the first token, and per output token after it."""

    ttft_ms: float
    tpot_ms: float

    @property
    def headers(self) -> dict[str, str]:
        return {TTFT_SLO_HEADER: f"{self.ttft_ms:g}", TPOT_SLO_HEADER: f"{self.tpot_ms:g}"}


class Workload(Protocol):
    """
    Attributes:
        name: on the command line.
        about: one line.
        targets: what its requests should keep, unless a run says otherwise.
        run_s: how long a run has to be for its figures to mean something: many times a request's own duration.
        most_requests: how many there are; `None`: they come without end.
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def targets(self) -> Targets: ...

    @property
    def run_s(self) -> float: ...

    @property
    def most_requests(self) -> int | None: ...

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        """Requests in order of time from 0 s on, `rate_rps` of them per second on average: without end, or, of a
        trace, until its own. Headers are not set, and every answer streams. Targets are set where they are not those of
        the workload. All chance is of `rng`."""


def run_s_at(workload: Workload, rate_rps: float, scale: float = 1.0) -> float:
    """How long a run is at this rate: as long as the workload asks for, times `scale`, but not beyond a trace's end."""
    run_s = scale * workload.run_s
    return run_s if workload.most_requests is None else min(run_s, workload.most_requests / rate_rps)


@dataclass(frozen=True, slots=True)
class Clients:
    """What is true of clients whatever they ask.

    Attributes:
        targets: sent in headers with every request that has none of its own; `None`: none are sent, not even these.
        streaming_ratio: how many of them want a stream.
    """

    targets: Targets | None
    streaming_ratio: float = 1.0

    def headers(self, own: Targets | None) -> dict[str, str]:
        """Of a request with targets of its own, or with none."""
        return {} if self.targets is None else (own or self.targets).headers


def schedule(
    workload: Workload,
    clients: Clients,
    rate_rps: float,
    seed: int,
    *,
    duration_s: float = math.inf,
    requests: int | None = None,
) -> tuple[LabRequest, ...]:
    """What arrives within `duration_s`, or the first `requests`. One seed is one schedule, whatever the policy.

    Within a duration there are as many requests as the rate asks for: times are stretched as a whole until it is so. In
    a minute of a workload that comes in bursts, chance alone would make the load anything. A trace that ends before is
    not repeated.
    """
    rng = random.Random(seed)
    streams = random.Random(rng.getrandbits(64))
    if requests is None:
        requests = round(rate_rps * duration_s)
    arriving = list(islice(workload.requests(rate_rps, rng), requests + 1))
    headers = {own: clients.headers(own) for own in {request.targets for request in arriving}}
    stretch = 1.0
    if math.isfinite(duration_s) and len(arriving) > requests and arriving[-1].at_s > 0.0:
        stretch = duration_s / arriving[-1].at_s
    return tuple(
        replace(
            request,
            at_s=request.at_s * stretch,
            headers=headers[request.targets],
            streaming=streams.random() < clients.streaming_ratio,
        )
        for request in arriving[:requests]
    )
