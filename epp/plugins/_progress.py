"""How far the answers in flight have come, as far as that can be told without reading them.

A picker sees when an answer begins and when it ends; what comes between passes it by. But it knows at what pace each
server makes tokens with so many requests there, and which prompts were computed meanwhile, during which no tokens come.
So every server has a count of the steps that it has made, and an answer has as many tokens as there were steps since
its first. The same sums say, when an answer has ended, among how many it was made on average. From these its server's
pace is learned: what was there at the decision says little of an answer that lasts for half a minute.

Requests of other processes that pick are not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import numpy as np

from epp.scheduling.data import FloatArray, IntArray

_WINDOW_S = 4.0  # over which a server's share of prefill is taken: with it rise and fall how fast others' answers come
_LEAST_KNOWN_RATIO = 0.25  # of an answer's tokens: with fewer steps what is there at its end says more than they do
_GONE = -1  # the row of an endpoint that has left the pool
_CAPACITY = 64


class Hope(NamedTuple):
    """Attributes:
    in_time: the probability that the first token is.
    deadline_s: until then it is.
    tpot_target_ms: `inf` if there is none.
    """

    in_time: float
    deadline_s: float
    tpot_target_ms: float


class InFlight(NamedTuple):
    """One value per request of this process that is with a candidate.

    Attributes:
        candidate: which one, by its place among the candidates.
        elapsed_ms: since the first token; 0 before it.
        tokens: made since then; 0 before it.
        waits: 1 before its first token, then 0.
        hope: the probability that the first token is in time; 0 or 1 when it has come, and 0 when it is overdue.
        tpot_target_ms: `inf` if there is none.
    """

    candidate: IntArray
    elapsed_ms: FloatArray
    tokens: FloatArray
    waits: FloatArray
    hope: FloatArray
    tpot_target_ms: FloatArray


class Life(NamedTuple):
    """What was on the server while an answer was made, on average over its tokens.

    Attributes:
        requests, context_tokens: there.
        prefill_ms: on other prompts, per token.
    """

    requests: float
    context_tokens: float
    prefill_ms: float


@dataclass(slots=True)
class _Answer:
    request_id: str
    endpoint_id: str
    prefill_ms: float
    stall_ms: float
    sent_s: float
    begun: bool = False
    whole: bool = True  # its server was known all the time
    requests_before: float = 0.0
    context_before: float = 0.0
    prefill_before_ms: float = 0.0


class Progress:
    """Of all that this process has in flight. For use from one thread; times in seconds of one clock."""

    def __init__(self) -> None:
        self._row_by_id: dict[str, int] = {}
        self._ids: Sequence[str] = ()
        # Per endpoint. Sums are over its steps, prefill over all prompts whose first token has come.
        self._at_s = self._steps = self._step_ms = np.zeros(0)
        self._requests = self._requests_sum = self._context = self._context_sum = np.zeros(0)
        self._prefill_ms = self._sent_s = self._sent_at_s = self._since_s = np.zeros(0)
        # Per request, without gaps: who leaves is replaced by the last.
        self._answers: list[_Answer] = []
        self._index: dict[str, int] = {}
        self._row = np.zeros(_CAPACITY, dtype=np.intp)
        self._first_s, self._steps_before = np.zeros(_CAPACITY), np.zeros(_CAPACITY)
        self._hope, self._deadline_s = np.zeros(_CAPACITY), np.zeros(_CAPACITY)
        self._tpot_target_ms = np.zeros(_CAPACITY)

    @property
    def requests(self) -> int:
        """Of this process, in flight."""
        return len(self._answers)

    def follow(self, endpoint_ids: Sequence[str]) -> None:
        """From now on rows are of these. What was known of those that stay is kept."""
        known = [self._row_by_id.get(endpoint_id, _GONE) for endpoint_id in endpoint_ids]
        self._ids = endpoint_ids
        self._row_by_id = {endpoint_id: row for row, endpoint_id in enumerate(endpoint_ids)}

        def kept(column: FloatArray, otherwise: float) -> FloatArray:
            return np.array([column[row] if row != _GONE else otherwise for row in known], dtype=np.float64)

        self._at_s, self._step_ms = kept(self._at_s, np.nan), kept(self._step_ms, 1.0)
        self._steps = kept(self._steps, 0.0)
        self._requests, self._requests_sum = kept(self._requests, 0.0), kept(self._requests_sum, 0.0)
        self._context, self._context_sum = kept(self._context, 0.0), kept(self._context_sum, 0.0)
        self._prefill_ms, self._sent_s = kept(self._prefill_ms, 0.0), kept(self._sent_s, 0.0)
        self._sent_at_s, self._since_s = kept(self._sent_at_s, 0.0), kept(self._since_s, np.nan)
        for index, answer in enumerate(self._answers):
            row = self._row_by_id.get(answer.endpoint_id, _GONE)
            if row == _GONE or self._row[index] == _GONE:  # one that is back counts anew
                answer.whole = False
                self._steps_before[index] = 0.0
            self._row[index] = row

    # --- what happens -----------------------------------------------------------------------------------------------

    def tick(
        self, rows: IntArray | slice, step_ms: FloatArray, requests: FloatArray, context: FloatArray, now_s: float
    ) -> None:
        """Since the last time these servers made steps of `step_ms`, prompts apart, with so much there as is now."""
        self._step_ms[rows], self._requests[rows], self._context[rows] = step_ms, requests, context
        self._made(rows, np.fmax((now_s - self._at_s[rows]) * (1e3 / step_ms), 0.0))  # the first time: none
        self._at_s[rows] = np.fmax(self._at_s[rows], now_s)

    def add(
        self, request_id: str, endpoint_id: str, hope: Hope, prefill_ms: float, stall_ms: float, now_s: float
    ) -> None:
        """It was sent there.

        Args:
            prefill_ms: what its prompt takes there.
            stall_ms: for how long the others get no tokens meanwhile.
        """
        self._remove(request_id)
        index = len(self._answers)
        if index == len(self._row):
            more = 2 * index
            self._row = np.resize(self._row, more)
            self._first_s, self._steps_before = np.resize(self._first_s, more), np.resize(self._steps_before, more)
            self._hope, self._deadline_s = np.resize(self._hope, more), np.resize(self._deadline_s, more)
            self._tpot_target_ms = np.resize(self._tpot_target_ms, more)
        row = self._row_by_id.get(endpoint_id, _GONE)
        self._answers.append(_Answer(request_id, endpoint_id, prefill_ms, stall_ms, now_s, whole=row != _GONE))
        self._index[request_id] = index
        self._row[index], self._first_s[index], self._steps_before[index] = row, np.nan, 0.0
        self._hope[index], self._deadline_s[index], self._tpot_target_ms[index] = hope
        if row != _GONE:
            if np.isnan(self._since_s[row]):
                self._since_s[row] = self._sent_at_s[row] = now_s
            fading = exp(min((self._sent_at_s[row] - now_s) / _WINDOW_S, 0.0))
            self._sent_s[row] = self._sent_s[row] * fading + stall_ms / 1e3
            self._sent_at_s[row] = now_s
            self._requests[row] += 1.0

    def first_token(self, request_id: str, at_s: float) -> None:
        """Its first token has come, so its prompt is computed. Again, or of an unknown request, nothing happens."""
        index = self._index.get(request_id)
        if index is None or self._answers[index].begun:
            return
        answer = self._answers[index]
        answer.begun = True
        self._first_s[index], self._hope[index] = at_s, float(at_s <= self._deadline_s[index])
        row = int(self._row[index])
        if row == _GONE:
            return
        self._advance(row, at_s)
        self._prefill_ms[row] += answer.prefill_ms
        self._made(row, -answer.stall_ms / float(self._step_ms[row]))
        steps, answer.requests_before, answer.context_before = self._sums(row, at_s)
        self._steps_before[index] = steps
        answer.prefill_before_ms = float(self._prefill_ms[row])

    def forget(self, request_id: str) -> None:
        """It is not answered there. Of an unknown request nothing happens."""
        self._remove(request_id)

    def end(self, request_id: str, at_s: float, tokens: float) -> Life | None:
        """It is over, after so many tokens since its first. `None` if little is known of its life."""
        index = self._index.get(request_id)
        life = None
        answer = None if index is None else self._answers[index]
        if index is not None and answer is not None and answer.begun and answer.whole:
            row = int(self._row[index])
            self._advance(row, at_s)
            steps, requests, context = self._sums(row, at_s)
            steps -= float(self._steps_before[index])
            prefill_ms = max(float(self._prefill_ms[row]) - answer.prefill_before_ms, 0.0) / max(tokens, 1.0)
            if steps > _LEAST_KNOWN_RATIO * max(tokens, 1.0):
                requests, context = requests - answer.requests_before, context - answer.context_before
                life = Life(max(requests / steps, 0.0), max(context / steps, 0.0), prefill_ms)
            else:  # left out, those whom prompts held up most would be missed
                life = Life(float(self._requests[row]), float(self._context[row]), prefill_ms)
        self._remove(request_id)
        return life

    def _made(self, rows: IntArray | slice | int, steps: FloatArray | float) -> None:
        """So many more, with what is there."""
        self._steps[rows] += steps
        self._requests_sum[rows] += steps * self._requests[rows]
        self._context_sum[rows] += steps * self._context[rows]

    def _advance(self, row: int, at_s: float) -> None:
        """As a tick: at the pace of the last one. What is told late changes nothing."""
        passed_s = at_s - float(self._at_s[row])
        if passed_s > 0.0:  # not before the first tick
            self._made(row, passed_s * 1e3 / float(self._step_ms[row]))
            self._at_s[row] = at_s

    def _sums(self, row: int, at_s: float) -> tuple[float, float, float]:
        """Steps of a server, and what was there over them, until then: now, or a little before the last tick."""
        at_last_s = float(self._at_s[row])
        more = 0.0 if np.isnan(at_last_s) else (at_s - at_last_s) * 1e3 / float(self._step_ms[row])
        return (
            float(self._steps[row]) + more,
            float(self._requests_sum[row]) + more * float(self._requests[row]),
            float(self._context_sum[row]) + more * float(self._context[row]),
        )

    def _remove(self, request_id: str) -> None:
        index = self._index.pop(request_id, None)
        if index is None:
            return
        answer, row = self._answers[index], int(self._row[index])
        if not answer.begun and row != _GONE:  # its prompt is not computed, or not to its end
            fading = exp(min((answer.sent_s - self._sent_at_s[row]) / _WINDOW_S, 0.0))
            self._sent_s[row] = max(self._sent_s[row] - answer.stall_ms / 1e3 * fading, 0.0)
        last = self._answers.pop()
        end = len(self._answers)
        if index != end:
            self._answers[index] = last
            self._index[last.request_id] = index
            for column in (
                self._row,
                self._first_s,
                self._steps_before,
                self._hope,
                self._deadline_s,
                self._tpot_target_ms,
            ):
                column[index] = column[end]

    # --- what is known ----------------------------------------------------------------------------------------------

    def prefill_ratios(self, rows: IntArray | slice, now_s: float) -> FloatArray:
        """Which share of its time each server stands still for prompts, by what it was sent of late; may be above 1."""
        fading = np.exp(np.minimum((self._sent_at_s[rows] - now_s) / _WINDOW_S, 0.0))
        seen_s = np.fmax(now_s - self._since_s[rows], _WINDOW_S)
        ratios: FloatArray = self._sent_s[rows] * fading / (_WINDOW_S * (1.0 - np.exp(-seen_s / _WINDOW_S)))
        return ratios

    def in_flight(self, rows: IntArray, everyone: bool, now_s: float) -> InFlight:
        """With the candidates in these rows, as of the last tick."""
        count = len(self._answers)
        row, first_s = self._row[:count], self._first_s[:count]
        steps_before, hope, deadline_s = self._steps_before[:count], self._hope[:count], self._deadline_s[:count]
        tpot_target_ms = self._tpot_target_ms[:count]
        candidate = row
        if not everyone or (count and row.min() == _GONE):
            places = np.full(len(self._ids) + 1, _GONE, dtype=np.intp)  # the last is that of who has gone
            places[rows] = np.arange(len(rows))
            candidate = places[row]
            here = candidate != _GONE
            candidate, row = candidate[here], row[here]
            first_s, steps_before = first_s[here], steps_before[here]
            hope, deadline_s, tpot_target_ms = hope[here], deadline_s[here], tpot_target_ms[here]
        waits = np.isnan(first_s)
        return InFlight(
            candidate,
            np.where(waits, 0.0, (now_s - first_s) * 1e3),
            np.where(waits, 0.0, np.fmax(self._steps[row] - steps_before, 0.0)),
            waits.astype(np.float64),
            np.where(waits & (deadline_s < now_s), 0.0, hope),
            tpot_target_ms,
        )
