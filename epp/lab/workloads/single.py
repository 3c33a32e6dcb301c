"""Requests that have nothing to do with one another: lengths and gaps alone."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from epp.lab.experiment import LabRequest
from epp.lab.prompts import SegmentNumbers
from epp.lab.workloads.parts import Bursts, arrivals
from epp.lab.workloads.workload import Targets
from epp.sim.workload import Lengths


@dataclass(frozen=True, slots=True)
class Single:
    """Every prompt is new. Fields as in `Workload`.

    Attributes:
        bursts: arrivals come in bursts, and `gap_cv` says nothing.
        tells_length: clients set as a limit what they will get, as load generators do; others set `output.most`.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    prompt: Lengths
    output: Lengths
    gap_cv: float = 1.0
    bursts: Bursts | None = None
    tells_length: bool = False

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        numbers = SegmentNumbers()
        steady = arrivals(rate_rps, self.gap_cv, rng)
        for at_s in steady if self.bursts is None else self.bursts.arrivals(rate_rps, rng):
            prompt = (numbers.new(self.prompt.draw(rng)),)
            output_tokens = self.output.draw(rng)
            limit = output_tokens if self.tells_length else self.output.most
            yield LabRequest(at_s, prompt, output_tokens, max_output_tokens=limit)
