"""Several workloads in one pool, each with targets of its own."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Segment
from epp.lab.workloads.workload import Targets, Workload


@dataclass(frozen=True, slots=True)
class Together:
    """Requests of each of these, with its own targets. They share no text.

    Attributes:
        parts: each with its share of the requests; shares add up to 1. A part that never ends: no trace.
        targets: those of the first part.
    """

    name: str
    about: str
    run_s: float
    parts: Sequence[tuple[Workload, float]]
    most_requests: ClassVar[int | None] = None

    @property
    def targets(self) -> Targets:
        return self.parts[0][0].targets

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        return heapq.merge(
            *(
                self._of(number, workload, share * rate_rps, random.Random(rng.getrandbits(64)))
                for number, (workload, share) in enumerate(self.parts)
            ),
            key=lambda request: request.at_s,
        )

    def _of(self, number: int, workload: Workload, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        def apart(segment: Segment) -> Segment:
            return Segment(segment.number * len(self.parts) + number, segment.tokens)

        own = None if workload.targets == self.targets else workload.targets
        for request in workload.requests(rate_rps, rng):
            yield replace(
                request,
                prompt=tuple(map(apart, request.prompt)),
                answer=None if request.answer is None else apart(request.answer),
                targets=own,
            )
