"""What is at stake when a request comes to a server: how likely it keeps its targets there, and who no longer would.

Everything is reckoned from the true state of the engine: the tokens each sequence still has to make, the prompts in
line, the step law. Two things nobody knows. Steps are noisy, so whether a target is kept is a probability, which falls
from 1 to 0 around the point where the time expected is the time allowed. And who leaves may be followed by another:
`Expected` says what is taken for granted of those who are yet to come.

What is true of a sequence as long as it decodes is written down once, when it is first seen to. So a look at a server
is a walk along its line, and then arithmetic on columns.
"""

from collections.abc import Mapping
from math import exp, isfinite
from typing import NamedTuple

import numpy as np

from epp.lab.servers import Server
from epp.scheduling.data import FloatArray
from epp.sim.engine import Engine
from epp.sim.sequence import Sequence
from epp.sim.workload import TPOT_SLO_HEADER, TTFT_SLO_HEADER

TTFT_SPREAD = 0.1
TPOT_SPREAD = 0.04
"""Of the target: by how much a time may miss what is expected of it. Steps have a noise of 5 %, which averages out over
an answer; what does not is who comes next."""

_LATE = 1.05  # of the TTFT target: whoever in line is expected later than this is lost
_UNSAID_S = 1.0, 0.05  # TTFT and TPOT for clients that name no targets: sooner is better all the same
_MOST_EXPONENT = 50.0
_FIRST_ROWS = 256


class Newcomer(NamedTuple):
    """A request that has to go somewhere.

    Attributes:
        prefill_s: what those of its tokens take that the server has not cached.
        ttft_allowed_s, tpot_allowed_s: for the first token, and for each after it.
    """

    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    prefill_s: float
    ttft_allowed_s: float
    tpot_allowed_s: float


class Expected(NamedTuple):
    """Of those who are yet to come.

    Attributes:
        followed_ratio: how much of the place of one who leaves is taken again: 0 for a server that falls idle, 1 for
            one that stays as full as it is.
        prefill_ratio: share of its time that the engine spends on the prompts of such.
    """

    followed_ratio: float
    prefill_ratio: float


class Outlook(NamedTuple):
    """Of a newcomer on a server.

    Attributes:
        keeps: how likely it keeps both targets.
        losses: how many others, by expectation, no longer would.
        used_up: shares of their targets that the newcomer and, through it, the others spend; of those who can keep
            them still.
    """

    keeps: float
    losses: float
    used_up: float


def allowed_s(headers: Mapping[str, str]) -> tuple[float, float]:
    """For the first token, and for each after it."""
    ttft_s, tpot_s = (float(headers.get(name, "inf")) / 1e3 for name in (TTFT_SLO_HEADER, TPOT_SLO_HEADER))
    return ttft_s if isfinite(ttft_s) else _UNSAID_S[0], tpot_s if isfinite(tpot_s) else _UNSAID_S[1]


def prefill_s(engine: Engine, uncached_tokens: int, prompt_tokens: int) -> float:
    """What computing the last so many tokens of a prompt adds to the steps it is done in."""
    law = engine.config.hardware
    pairs = uncached_tokens * (prompt_tokens - uncached_tokens / 2)
    return (law.step_ms(uncached_tokens, 0, pairs) - law.base_ms) * engine.slow_factor / 1e3


class _Decoding:
    """The sequences of an engine that decode, as columns.

    The columns: the step after which a sequence ends, when its first token came, the seconds its tokens after that may
    take in all, whether the first token was in time, and its context at its end.
    """

    def __init__(self) -> None:
        self._table = np.empty((_FIRST_ROWS, 5))
        self._rows: dict[Sequence, tuple[int, int]] = {}  # since when it decodes, and where it is in the table

    def look(self, server: Server, placed: Mapping[int, Newcomer]) -> FloatArray:
        """One row each."""
        rows = []
        for sequence in server.engine.scheduler.running:
            since = sequence.decoding_since
            if since is None:
                continue
            known = self._rows.get(sequence)
            if known is not None and known[0] == since:
                rows.append(known[1])
            elif (row := self._note(sequence, since, server, placed)) is not None:
                rows.append(row)
        found = self._table[rows]
        if len(self._rows) > 2 * _FIRST_ROWS and len(self._rows) > 4 * len(rows):
            self._rows.clear()  # most have ended; the others are noted again
        return found

    def _note(self, sequence: Sequence, since: int, server: Server, placed: Mapping[int, Newcomer]) -> int | None:
        live = server.live.get(sequence.request.id)
        if live is None:
            return None
        new, request = placed[id(live.planned)], sequence.request
        row = len(self._rows) if sequence not in self._rows else self._rows[sequence][1]
        if row == len(self._table):
            self._table = np.concatenate((self._table, np.empty_like(self._table)))
        self._rows[sequence] = since, row
        self._table[row] = (
            since + request.output_tokens - sequence.produced_tokens,
            live.first_token_s,
            max(request.output_tokens - 1, 1) * new.tpot_allowed_s,
            live.first_token_s - live.served.at_s <= new.ttft_allowed_s,
            request.prompt_tokens + request.output_tokens,
        )
        return row


class Stakes:
    """Of one server. `placed`: what was said of each request, by the identity of its `LabRequest`, when it came to the
    server it is at."""

    def __init__(self, server: Server, placed: Mapping[int, Newcomer]) -> None:
        self._server = server
        self._placed = placed
        self._decoding = _Decoding()

    def outlook(self, new: Newcomer, now_s: float, expected: Expected) -> Outlook:
        """See the module's text."""
        engine = self._server.engine
        config, scheduler, law = engine.config, engine.scheduler, engine.config.hardware
        slow_s = engine.slow_factor / 1e3
        base_s = law.base_ms * slow_s
        next_s = engine.next_event_s()
        rest_s = 0.0 if next_s is None else max(next_s - now_s, 0.0)  # of the step that is being computed

        table = self._decoding.look(self._server, self._placed)
        decoding = len(table)
        left, allowed, hopeful = table[:, 0] - scheduler.decoders.steps, table[:, 2], table[:, 3]
        spent_s = now_s + rest_s - table[:, 1]

        # The line: those in prefill, those that wait, those that are about to.
        in_step_tokens = config.max_batched_tokens - decoding  # of prompts in the step that is being computed
        line_s, line_tokens, waiting_tokens = 0.0, 0, 0
        line_context_tokens = new.prompt_tokens
        line: list[tuple[float, float, float, float]] = []  # left, allowed, hopeful, line up to its own end
        for sequence in (*scheduler.prefilling, *scheduler.waiting, *(s for _, s in engine.arriving)):
            live = self._server.live.get(sequence.request.id)
            if live is None:
                continue
            one = self._placed[id(live.planned)]
            if sequence.blocks:
                tokens = sequence.tokens - sequence.computed_tokens
                in_step = min(tokens, in_step_tokens)
                in_step_tokens -= in_step
                tokens -= in_step
                line_s += prefill_s(engine, tokens, sequence.tokens) if tokens else 0.0
            else:
                tokens = one.uncached_tokens
                waiting_tokens += tokens
                line_s += one.prefill_s
            line_tokens += tokens
            line_context_tokens += sequence.tokens
            after_first = one.output_tokens - 1
            in_time = now_s + rest_s + line_s - live.served.at_s <= _LATE * one.ttft_allowed_s
            line.append((after_first, max(after_first, 1) * one.tpot_allowed_s, in_time, line_s))
        count = decoding + len(line)
        context_tokens = scheduler.decoders.context_tokens + line_context_tokens
        before_s = law.step_ms(0, count, 0.0, context_tokens - new.prompt_tokens) * slow_s
        after_s = law.step_ms(0, count + 1, 0.0, context_tokens) * slow_s

        # The first token of the newcomer.
        overhead_s = sum(config.overhead_ms) / 2e3
        starts_s = rest_s if rest_s > overhead_s else overhead_s + (before_s / 2 if count else 0.0)
        steps = max(-(-(line_tokens + new.uncached_tokens) // max(config.max_batched_tokens - decoding, 1)), 1)
        ttft_s = starts_s + line_s + new.prefill_s + steps * after_s
        missing_tokens = waiting_tokens + new.uncached_tokens - scheduler.kv.free_blocks * config.block_tokens
        missing_slots = count + 1 - config.max_sequences
        if decoding and (missing_tokens > 0 or missing_slots > 0):
            ttft_s += before_s * _steps_until_room(left, table[:, 4], missing_slots, missing_tokens)

        # The tokens after it, and those of the others.
        followed, paused = expected.followed_ratio, 1.0 - expected.prefill_ratio
        to_make = max(new.output_tokens - 1, 0)
        losses = used_up = beside_s = 0.0
        if count:
            spent_s = spent_s + line_s
            if line:
                waiting = np.array(line)
                left = np.concatenate((left, waiting[:, 0]))
                allowed = np.concatenate((allowed, waiting[:, 1]))
                hopeful = np.concatenate((hopeful, waiting[:, 2]))
                spent_s = np.concatenate((spent_s, line_s - waiting[:, 3]))
            more_s = (after_s - before_s) * followed / paused * left + new.prefill_s
            last_s = spent_s + before_s * followed / paused * left
            if followed < 1.0:
                shared = np.minimum(left, to_make)
                last_s += (1.0 - followed) * _shrinking_s(left, base_s, before_s)
                more_s += (1.0 - followed) * (after_s - before_s) * shared
                beside_s = float(shared.sum()) * (before_s - base_s) / count
            ratio, more = last_s / allowed, more_s / allowed
            likely = hopeful * _likely_each(ratio)
            losses = float((likely - hopeful * _likely_each(ratio + more)).sum())
            used_up = float((likely * np.minimum(more, 1.0)).sum())
        keeps = _likely(ttft_s / new.ttft_allowed_s, TTFT_SPREAD)
        if to_make:
            alone_s = base_s + (after_s - base_s) / (count + 1)
            tpot_s = followed * after_s / paused + (1.0 - followed) * (alone_s + beside_s / to_make)
            keeps *= _likely(tpot_s / new.tpot_allowed_s, TPOT_SPREAD)
            used_up += keeps * tpot_s / new.tpot_allowed_s
        return Outlook(keeps, losses, used_up + keeps * ttft_s / new.ttft_allowed_s)


def _steps_until_room(left: FloatArray, context: FloatArray, slots: int, tokens: int) -> float:
    """Until so many of those that decode have ended that there are slots and blocks for all in line."""
    order = np.argsort(left)
    ends = slots
    if tokens > 0:
        ends = max(ends, int(np.searchsorted(np.cumsum(context[order]), tokens)) + 1)
    return float(left[order[min(ends, len(left)) - 1]]) * max(ends / len(left), 1.0)


def _shrinking_s(left: FloatArray, base_s: float, full_s: float) -> FloatArray:
    """Until the end of each, if nobody comes and steps get shorter with each that ends."""
    order = np.argsort(left)
    ordered = left[order]
    per_sequence_s = (full_s - base_s) / len(left)
    ordered[1:] -= ordered[:-1].copy()
    seconds = np.empty(len(left))
    seconds[order] = np.cumsum(ordered * (base_s + per_sequence_s * np.arange(len(left), 0, -1)))
    return seconds


def _likely(ratio: float, spread: float) -> float:
    """That what is expected to take `ratio` of the time allowed takes no more than all of it."""
    return 1.0 / (1.0 + exp(min(max((ratio - 1.0) / spread, -_MOST_EXPONENT), _MOST_EXPONENT)))


def _likely_each(ratio: FloatArray) -> FloatArray:
    likely: FloatArray = 1.0 / (1.0 + np.exp(np.minimum((ratio - 1.0) / TPOT_SPREAD, _MOST_EXPONENT)))
    return likely
