"""Conversations: every turn's prompt is the last one, its answer, and something new.

Turns come at times that are drawn beforehand, not when the turn before has been answered: so every policy faces the
same schedule. Under overload a client then asks on before it has read, as it does when a trace is replayed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Prompt, SegmentNumbers
from epp.lab.workloads.parts import arrivals, interleaved, log_uniform
from epp.lab.workloads.workload import Targets
from epp.sim.workload import Lengths


def conversation(
    head: Prompt,
    turns: Iterator[tuple[float, int, int]],
    numbers: SegmentNumbers,
    most_tokens: int,
    max_output_tokens: int,
) -> list[LabRequest]:
    """The requests of one session; of each turn: when, tokens that are new in the prompt, tokens of the answer.

    It ends before a prompt and its answer would be longer than `most_tokens`.
    """
    requests = []
    prompt, length = head, sum(s.tokens for s in head)
    for at_s, new_tokens, output_tokens in turns:
        length += new_tokens + output_tokens
        if length > most_tokens:
            break
        prompt = (*prompt, numbers.new(new_tokens))
        answer = numbers.new(output_tokens)
        requests.append(LabRequest(at_s, prompt, output_tokens, True, max_output_tokens, answer))
        prompt = (*prompt, answer)
    return requests


@dataclass(frozen=True, slots=True)
class Chats:
    """Chats of which most have one turn and some many. Time scales as a whole, with the steps in which they come.

    Attributes:
        rate_rps: at which the times below are true.
        head: of every prompt, in tokens: the application's own text.
        first, new, output: lengths of a first prompt, of what is new in a later one, of an answer.
        chatty_ratio, stay_ratio: how many go on at all, and with which probability these go on after each turn.
        pause: between two turns, in seconds.
        step_s: requests come together at multiples of this.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    rate_rps: float
    head_tokens: int
    first: Lengths
    new: Lengths
    output: Lengths
    chatty_ratio: float
    stay_ratio: float
    pause_mu: float
    pause_sigma: float
    step_s: float
    most_tokens: int = 130_000

    @property
    def turns(self) -> float:
        """Per session, on average."""
        return 1.0 + self.chatty_ratio * self.stay_ratio / (1.0 - self.stay_ratio)

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        scale = self.rate_rps / rate_rps
        numbers = SegmentNumbers()
        head = (numbers.new(self.head_tokens),)
        starts = arrivals(rate_rps / self.turns, 1.0, rng, start_s=-1500.0 * scale)  # others were there before
        return interleaved(
            conversation(head, self._turns(start_s, scale, rng), numbers, self.most_tokens, self.output.most)
            for start_s in starts
        )

    def _turns(self, start_s: float, scale: float, rng: random.Random) -> Iterator[tuple[float, int, int]]:
        at_s, new = start_s, self.first
        stays = self.stay_ratio if rng.random() < self.chatty_ratio else 0.0
        step_s = self.step_s * scale
        while True:
            yield (at_s // step_s * step_s if step_s else at_s), new.draw(rng), self.output.draw(rng)
            if rng.random() >= stays:
                return
            new = self.new
            at_s += rng.lognormvariate(self.pause_mu, self.pause_sigma) * scale


@dataclass(frozen=True, slots=True)
class Agents:
    """Agents that work in turns on one of several projects, each with a long text of its own.

    Attributes:
        projects: how many there are; their texts are from `least_head_tokens` to `most_head_tokens`, even in the log.
        turns, new_tokens, output_tokens: of a session.
        pause_s: between two turns, on average; what the agent does with an answer. At least half of it passes.
    """

    name: str
    about: str
    targets: Targets
    run_s: float
    most_requests: ClassVar[int | None] = None
    projects: int
    least_head_tokens: int
    most_head_tokens: int
    turns: int
    new_tokens: int
    output_tokens: int
    pause_s: float

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        numbers = SegmentNumbers()
        span = self.least_head_tokens, self.most_head_tokens
        heads = [numbers.new(log_uniform(*span, (i + 0.5) / self.projects)) for i in range(self.projects)]
        starts = arrivals(rate_rps / self.turns, 1.0, rng, start_s=-self.turns * self.pause_s)
        return interleaved(
            conversation((rng.choice(heads),), self._turns(start_s, rng), numbers, 131_072, 2 * self.output_tokens)
            for start_s in starts
        )

    def _turns(self, start_s: float, rng: random.Random) -> Iterator[tuple[float, int, int]]:
        at_s = start_s
        for _ in range(self.turns):
            yield at_s, self.new_tokens, self.output_tokens
            at_s += self.pause_s * (0.5 + 0.5 * rng.expovariate(1.0))
