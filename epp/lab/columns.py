"""The sequences of an engine as columns, to be reckoned with: those that decode, and the line of prompts before them.

What is true of a sequence as long as it decodes is written down once, when it is first seen to. So a look at an engine
costs a walk along its line and little more. For the oracle alone: nobody else sees engines.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from epp.lab.servers import Server
from epp.scheduling.data import FloatArray
from epp.sim.decoders import Decoders
from epp.sim.engine import Engine
from epp.sim.sequence import Sequence

_FIRST_ROWS = 256


class Newcomer(NamedTuple):
    """A request that has to go somewhere, as it would be at one server.

    Attributes:
        uncached_tokens, prefill_s: of its prompt what the server has not cached, and what that takes.
        ttft_allowed_s, tpot_allowed_s: for the first token, and for each after it.
        later_tokens: of its answer, after the first.
        later_allowed_s: for all of these; if there are none, there is one that does not count.
    """

    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    prefill_s: float
    ttft_allowed_s: float
    tpot_allowed_s: float
    later_tokens: int
    later_allowed_s: float


Placed = Mapping[int, Newcomer]
"""What each request was, by the identity of its `LabRequest`, to the server it was sent to."""


def prefill_s(engine: Engine, uncached_tokens: int, prompt_tokens: int) -> float:
    """What computing the last so many tokens of a prompt adds to the steps it is done in."""
    return engine.config.hardware.prefill_ms(uncached_tokens, prompt_tokens) * engine.slow_factor / 1e3


def rest_of_step_s(engine: Engine, now_s: float) -> float:
    """Until the step ends that is being computed."""
    next_s = engine.next_event_s()
    return 0.0 if next_s is None else max(next_s - now_s, 0.0)


class Decoding(NamedTuple):
    """One row for each sequence that decodes.

    Attributes:
        left_tokens: it is to make still.
        first_s: when its first token came.
        allowed_s: for all tokens after that.
        hopeful: 1 if the first token was in time; else 0.
        context_tokens: at its end.
    """

    left_tokens: FloatArray
    first_s: FloatArray
    allowed_s: FloatArray
    hopeful: FloatArray
    context_tokens: FloatArray


class DecodingTable:
    """Writes down what stays true of a sequence while it decodes: a `Decoding`, but for the first column the number of
    the step after which it ends."""

    def __init__(self) -> None:
        self._table = np.empty((_FIRST_ROWS, len(Decoding._fields)))
        self._rows: dict[Sequence, int] = {}  # where it is in the table
        self._seen: tuple[Decoders, int, int] | None = None  # at the last look; as long as it is so, the same decode
        self._found = self._table[:0].T.copy()  # at the last look: a row for each field of `Decoding`

    def look(self, server: Server, placed: Placed) -> Decoding:
        scheduler = server.engine.scheduler
        decoders = scheduler.decoders
        seen = decoders, decoders.changes, scheduler.preemptions
        if seen != self._seen:
            preempted = self._seen is not None and seen[2] != self._seen[2]
            most_ended = len(self._rows) > max(2 * _FIRST_ROWS, 4 * len(scheduler.running))
            if preempted or most_ended:
                self._rows.clear()  # the others are noted again, and as they now are
            self._found = self._table_of(server, placed)
            self._seen = seen
        last_step, first_s, allowed_s, hopeful, context_tokens = self._found
        return Decoding(last_step - decoders.steps, first_s, allowed_s, hopeful, context_tokens)

    def _table_of(self, server: Server, placed: Placed) -> FloatArray:
        running = server.engine.scheduler.running
        rows: list[int] = []
        for sequence, known in zip(running, map(self._rows.get, running), strict=True):
            if known is not None:
                rows.append(known)
            elif sequence.decoding_since is not None:
                row = self._note(sequence, sequence.decoding_since, server, placed)
                if row is not None:
                    rows.append(row)
        return self._table[rows].T.copy()

    def _note(self, sequence: Sequence, since: int, server: Server, placed: Placed) -> int | None:
        live = server.live.get(sequence.request.id)
        if live is None:
            return None
        new, request, row = placed[id(live.planned)], sequence.request, len(self._rows)
        if row == len(self._table):
            self._table = np.concatenate((self._table, np.empty_like(self._table)))
        self._rows[sequence] = row
        self._table[row] = (  # in the order of `Decoding`
            since + request.output_tokens - sequence.produced_tokens,
            live.first_token_s,
            new.later_allowed_s,
            live.first_token_s - live.served.at_s <= new.ttft_allowed_s,
            request.prompt_tokens + request.output_tokens,
        )
        return row


class Line(NamedTuple):
    """The prompts that are not computed yet, in their order: those in prefill, those that wait, those on their way.
    What is computed in the step that is under way counts as done.

    Attributes:
        rows: of each the tokens of its answer after the first, the seconds allowed for these, 1 if it is still expected
            to have its first token in time (else 0), and the seconds of prefill up to the end of its own.
        prefill_s, prefill_tokens: of all.
        waiting_tokens: of those that have no blocks yet.
        prompt_tokens: of all, computed or not.
    """

    rows: FloatArray
    prefill_s: float
    prefill_tokens: int
    waiting_tokens: int
    prompt_tokens: int


def line_of(server: Server, placed: Placed, now_s: float, rest_s: float, late_ratio: float) -> Line:
    """`rest_s`: see `rest_of_step_s`. `late_ratio`: who is expected after so much of the time allowed is late."""
    engine, scheduler = server.engine, server.engine.scheduler
    starts_s = now_s + rest_s
    in_step_tokens = engine.config.max_batched_tokens - scheduler.decoders.count
    line_s, line_tokens, waiting_tokens, prompt_tokens = 0.0, 0, 0, 0
    rows = []
    find = server.live.get
    for sequence in (*scheduler.prefilling, *scheduler.waiting, *(s for _, s in engine.arriving)):
        live = find(sequence.request.id)
        if live is None:
            continue
        new = placed[id(live.planned)]
        its_tokens = sequence.tokens
        if sequence.blocks:
            tokens = its_tokens - sequence.computed_tokens
            in_step = min(tokens, in_step_tokens)
            in_step_tokens -= in_step
            tokens -= in_step
            line_s += prefill_s(engine, tokens, its_tokens)
        else:
            tokens = new.uncached_tokens
            waiting_tokens += tokens
            line_s += new.prefill_s
        line_tokens += tokens
        prompt_tokens += its_tokens
        in_time = starts_s + line_s - live.served.at_s <= late_ratio * new.ttft_allowed_s
        rows.append((new.later_tokens, new.later_allowed_s, in_time, line_s))
    columns = np.array(rows, float) if rows else np.empty((0, 4))
    return Line(columns, line_s, line_tokens, waiting_tokens, prompt_tokens)
