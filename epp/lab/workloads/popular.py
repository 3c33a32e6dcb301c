"""Requests about things of which some are asked for far more often than others: an agent's tools, documents.

How often is Zipf's law: the n-th most popular is asked for in proportion to 1/n.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Segment, SegmentNumbers
from epp.lab.workloads.parts import arrivals, zipf
from epp.lab.workloads.workload import Targets
from epp.sim.workload import Lengths


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls by agents: instructions and descriptions of tools, which all calls of an agent share, then what is new.

    Attributes:
        heads: lengths of the shared texts, in tokens, the most popular first.
        new, output: lengths of what comes after them, and of an answer.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    heads: Sequence[int]
    new: Lengths
    output: Lengths

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        numbers = SegmentNumbers()
        heads, popularity = [numbers.new(tokens) for tokens in self.heads], zipf(len(self.heads))
        for at_s in arrivals(rate_rps, 1.0, rng):
            (head,) = rng.choices(heads, cum_weights=popularity)
            prompt = (head, numbers.new(self.new.draw(rng)))
            yield LabRequest(at_s, prompt, self.output.draw(rng), max_output_tokens=self.output.most)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Questions about documents: an instruction, the same for all, some documents, the question.

    Documents come in the order in which they are found, which is another for every question: prompts share a beginning
    as far as the first documents are the same.

    Attributes:
        instruction_tokens: before all.
        documents: lengths of all that there are, in tokens, the most popular first.
        found: how many of them a prompt has, each once.
        question, output: lengths.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    instruction_tokens: int
    documents: Sequence[int]
    found: int
    question: Lengths
    output: Lengths

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        numbers = SegmentNumbers()
        instruction = numbers.new(self.instruction_tokens)
        documents, popularity = [numbers.new(tokens) for tokens in self.documents], zipf(len(self.documents))
        for at_s in arrivals(rate_rps, 1.0, rng):
            found: dict[Segment, None] = {}
            while len(found) < self.found:
                found.update(dict.fromkeys(rng.choices(documents, cum_weights=popularity)))
            prompt = (instruction, *found, numbers.new(self.question.draw(rng)))
            yield LabRequest(at_s, prompt, self.output.draw(rng), max_output_tokens=self.output.most)
