"""What is at stake when a request comes to a server: how likely it keeps its targets there, and who no longer would.

Everything is reckoned from the true state of the engine: the tokens each sequence still has to make, the prompts in
line, the step law. Two things nobody knows. Steps are noisy, so whether a target is kept is a probability, which falls
from 1 to 0 around the point where the time expected is the time allowed. And who leaves may be followed by another:
`Expected` says what is taken for granted of those who are yet to come.
"""

from math import exp
from typing import NamedTuple

import numpy as np

from epp.lab.columns import Decoding, DecodingTable, Line, Newcomer, Placed, line_of, rest_of_step_s
from epp.lab.servers import Server
from epp.scheduling.data import FloatArray

TTFT_SPREAD = 0.1
TPOT_SPREAD = 0.04
"""Of the target: by how much a time may miss what is expected of it. Steps have a noise of 5 %, which averages out over
an answer; what does not is who comes next."""

_LATE_RATIO = 1.05  # of the TTFT target: whoever in line is expected later than this is lost
_MOST_EXPONENT = 50.0


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
        used_up: shares of their targets that the newcomer and, through it, the others spend.
        used_up_in_hope: the same, of those who can keep their targets still.
    """

    keeps: float
    losses: float
    used_up: float
    used_up_in_hope: float


class _Pace(NamedTuple):
    """Seconds of a step without prefill: of an empty batch, of all that are here, and of these with the newcomer."""

    base_s: float
    before_s: float
    after_s: float
    sequences: int

    @property
    def each_s(self) -> float:
        """What one sequence adds, on average."""
        return (self.before_s - self.base_s) / self.sequences if self.sequences else 0.0


class Stakes:
    """Of one server."""

    def __init__(self, server: Server, placed: Placed) -> None:
        self._server = server
        self._placed = placed
        self._table = DecodingTable()

    def outlook(self, new: Newcomer, now_s: float, expected: Expected) -> Outlook:
        """See the module's text."""
        rest_s = rest_of_step_s(self._server.engine, now_s)
        decoding = self._table.look(self._server, self._placed)
        line = line_of(self._server, self._placed, now_s, rest_s, _LATE_RATIO)
        pace = self._pace(new, decoding, line)
        budget = max(self._server.engine.config.max_batched_tokens - len(decoding.left_tokens), 1)
        steps = max(-(-(line.prefill_tokens + new.uncached_tokens) // budget), 1)  # until all in line is computed
        ttft_ratio = self._ttft_s(new, rest_s, decoding, line, pace, steps) / new.ttft_allowed_s
        keeps = _likely(ttft_ratio, TTFT_SPREAD)
        left_tokens = _joined(decoding.left_tokens, line, 0)
        used_up = ttft_ratio
        if new.later_tokens:
            tpot_ratio = _tpot_s(new, left_tokens, pace, expected) / new.tpot_allowed_s
            keeps *= _likely(tpot_ratio, TPOT_SPREAD)
            used_up += tpot_ratio
        if not pace.sequences:
            return Outlook(keeps, 0.0, used_up, keeps * used_up)

        allowed_s, hopeful = _joined(decoding.allowed_s, line, 1), _joined(decoding.hopeful, line, 2)
        decode = len(decoding.left_tokens)
        spent_s = np.zeros(len(left_tokens))
        np.subtract(now_s + rest_s, decoding.first_s, out=spent_s[:decode])
        behind_s = np.full(len(left_tokens), line.prefill_s)
        behind_s[decode:] -= line.rows[:, 3]
        # Nobody waits for more prefill than fits into the steps that he is in.
        most_s = left_tokens * ((line.prefill_s + new.prefill_s) / steps)
        stalled_s = np.minimum(behind_s, most_s)
        ratio = (spent_s + stalled_s + _left_s(left_tokens, pace, expected)) / allowed_s
        more_s = np.minimum(behind_s + new.prefill_s, most_s) - stalled_s + _more_s(new, left_tokens, pace, expected)
        more = more_s / allowed_s
        likely = hopeful * _likely_each(ratio)
        losses = _sum(likely - hopeful * _likely_each(ratio + more))
        in_hope = keeps * used_up + _sum(likely * np.minimum(more, 1.0))
        return Outlook(keeps, losses, used_up + _sum(more), in_hope)

    def _pace(self, new: Newcomer, decoding: Decoding, line: Line) -> _Pace:
        engine = self._server.engine
        law, slow_s = engine.config.hardware, engine.slow_factor / 1e3
        count = len(decoding.left_tokens) + len(line.rows)
        context_tokens = engine.scheduler.decoders.context_tokens + line.prompt_tokens
        before_ms = law.step_ms(0, count, 0.0, context_tokens)
        after_ms = law.step_ms(0, count + 1, 0.0, context_tokens + new.prompt_tokens)
        return _Pace(law.base_ms * slow_s, before_ms * slow_s, after_ms * slow_s, count)

    def _ttft_s(self, new: Newcomer, rest_s: float, decoding: Decoding, line: Line, pace: _Pace, steps: int) -> float:
        """Its way to the engine, the line, its own prompt, and before all of it room for them."""
        engine = self._server.engine
        config, running = engine.config, len(decoding.left_tokens)
        overhead_s = sum(config.overhead_ms) / 2e3
        starts_s = rest_s if rest_s > overhead_s else overhead_s + (pace.before_s / 2 if pace.sequences else 0.0)
        tokens = line.waiting_tokens + new.uncached_tokens - engine.scheduler.kv.free_blocks * config.block_tokens
        slots = pace.sequences + 1 - config.max_sequences
        room_steps = _steps_until_room(decoding, slots, tokens) if running and (tokens > 0 or slots > 0) else 0.0
        return starts_s + line.prefill_s + new.prefill_s + max(steps, room_steps) * pace.after_s


def _joined(decoding: FloatArray, line: Line, column: int) -> FloatArray:
    """Those that decode, and those in line. Not to be written to."""
    return np.concatenate((decoding, line.rows[:, column])) if len(line.rows) else decoding


def _steps_until_room(decoding: Decoding, slots: int, tokens: int) -> float:
    """Until enough of those that decode have ended for so many slots and tokens of cache to be free."""
    order = decoding.left_tokens.argsort()
    ends = slots
    if tokens > 0:
        ends = max(ends, int(np.searchsorted(np.cumsum(decoding.context_tokens[order]), tokens)) + 1)
    last = order[min(ends, len(order)) - 1]
    return float(decoding.left_tokens[last]) * max(ends / len(order), 1.0)


def _tpot_s(new: Newcomer, left_tokens: FloatArray, pace: _Pace, expected: Expected) -> float:
    """Of the newcomer: among as many as are here now, or fewer and fewer."""
    followed = expected.followed_ratio
    beside = _sum(np.minimum(left_tokens, new.later_tokens)) / new.later_tokens
    alone_s = pace.base_s + (pace.after_s - pace.base_s) / (pace.sequences + 1)
    full_s = pace.after_s / (1.0 - expected.prefill_ratio)
    return followed * full_s + (1.0 - followed) * (alone_s + beside * pace.each_s)


def _left_s(left_tokens: FloatArray, pace: _Pace, expected: Expected) -> FloatArray:
    """Until the end of each, without the newcomer and without what is in line."""
    followed = expected.followed_ratio
    order = left_tokens.argsort()
    passing = left_tokens[order]
    passing[1:] -= passing[:-1].copy()
    fewer_s = np.empty(len(order))
    fewer_s[order] = (passing * (pace.base_s + pace.each_s * np.arange(len(order), 0, -1))).cumsum()
    full_s = left_tokens * (pace.before_s / (1.0 - expected.prefill_ratio))
    left_s: FloatArray = followed * full_s + (1.0 - followed) * fewer_s
    return left_s


def _more_s(new: Newcomer, left_tokens: FloatArray, pace: _Pace, expected: Expected) -> FloatArray:
    """By how much the newcomer's decoding delays each. If it is followed, all of its successors' count too."""
    followed = expected.followed_ratio
    full = left_tokens / (1.0 - expected.prefill_ratio)
    more_s: FloatArray = (pace.after_s - pace.before_s) * (
        followed * full + (1.0 - followed) * np.minimum(left_tokens, new.later_tokens)
    )
    return more_s


def _likely(ratio: float, spread: float) -> float:
    """That what is expected to take `ratio` of the time allowed takes no more than all of it."""
    return 1.0 / (1.0 + exp(min(max((ratio - 1.0) / spread, -_MOST_EXPONENT), _MOST_EXPONENT)))


def _sum(values: FloatArray) -> float:
    """As `values.sum()`, which asks first what is meant."""
    return float(np.add.reduce(values))


def _likely_each(ratio: FloatArray) -> FloatArray:
    likely: FloatArray = 1.0 / (1.0 + np.exp(np.minimum((ratio - 1.0) / TPOT_SPREAD, _MOST_EXPONENT)))
    return likely
