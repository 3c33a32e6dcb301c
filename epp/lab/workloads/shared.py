"""Requests that share the beginning of their prompts: many tenants, each with a text of its own."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import ClassVar

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Prompt, SegmentNumbers
from epp.lab.workloads.parts import arrivals
from epp.lab.workloads.workload import Targets
from epp.sim.workload import Lengths


@dataclass(frozen=True, slots=True)
class SharedHeads:
    """Each request takes one of the heads by chance, all alike, and adds a question of its own. They come as Poisson's.

    Attributes:
        heads: lengths of the shared texts, in tokens.
        question_tokens, question_ratio: of a question: so many, and this share of the head it comes after.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    heads: Sequence[int]
    question_tokens: int
    output: Lengths
    question_ratio: float = 0.0

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        numbers = SegmentNumbers()
        heads = [numbers.new(tokens) for tokens in self.heads]
        for at_s in arrivals(rate_rps, 1.0, rng):
            head = rng.choice(heads)
            question = numbers.new(round(self.question_tokens + self.question_ratio * head.tokens))
            prompt: Prompt = (head, question)
            yield LabRequest(at_s, prompt, self.output.draw(rng), max_output_tokens=self.output.most)


def spread(lengths: Lengths, count: int) -> tuple[int, ...]:
    """`count` lengths that stand for the whole distribution: its quantiles, the same for every seed."""
    middle = NormalDist()
    z = [middle.inv_cdf((i + 0.5) / count) for i in range(count)]
    return tuple(min(lengths.most, max(1, round(exp(lengths.mu + lengths.sigma * x)))) for x in z)


def strewn(lengths: Sequence[int], step: int) -> tuple[int, ...]:
    """The same from the middle on in steps, round and round, so that an order by length says nothing of it any more.
    `step` has no divisor in common with how many they are."""
    middle = len(lengths) // 2
    return tuple(lengths[(middle + i * step) % len(lengths)] for i in range(len(lengths)))
