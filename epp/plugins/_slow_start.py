"""New servers and servers that fail: tried, not flooded.

A server that nobody has used yet cannot be compared with the others, and a server that fails at once looks idle, and
so fast, to everything that counts what is in flight. Neither is left to the predictions:

* *new*: until it has begun `samples` good answers it gets, by chance, a share of the requests that grows from a tenth
  of a fair share to a whole one, and never more in flight than it has begun to answer, plus one;
* *failing*: after `failures` failures in a row it gets one request at a time, and waits between them, 1 s at first and
  twice as long after each further failure up to 16 s. The first token of a good answer makes it a new server, so that
  nobody waits for the last one of a long answer; it takes a whole one to make the failures forgotten.

When all candidates are new or failing there is nothing to compare them with, and nobody is held back.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DataKey, FloatArray, IntArray, SlowStart

FIRST_SHARE = 0.1  # of a fair share, for a server that has answered nothing yet
MAX_SHARE = 0.5  # of all requests, for all new servers together
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 16.0


@dataclass(slots=True)
class _Record:
    answers: int
    failures: int = 0
    lives: bool = True  # has begun a good answer since the last failure
    failed_s: float = -inf
    not_before_s: float = 0.0


class SlowStartTracker:
    """What is known of each endpoint. `samples` of 0 knows no new servers, `failures` of 0 no failing ones."""

    def __init__(self, samples: int, failures: int) -> None:
        self._samples = samples
        self._failures = failures
        self._records: dict[str, _Record] = {}
        self._held_back: dict[str, _Record] = {}  # of those the new and failing ones: as a rule, none

    def knows(self, endpoint_id: str) -> bool:
        return endpoint_id in self._records

    def add(self, endpoint_id: str, answers: int) -> None:
        """An endpoint came; it has given so many good answers in an earlier life."""
        self._records[endpoint_id] = _Record(min(answers, self._samples))
        self._classify(endpoint_id)

    def keep(self, endpoint_ids: Mapping[str, object]) -> list[str]:
        """Forget all others; returns who that was."""
        gone = [endpoint_id for endpoint_id in self._records if endpoint_id not in endpoint_ids]
        for endpoint_id in gone:
            del self._records[endpoint_id]
            self._held_back.pop(endpoint_id, None)
        return gone

    def answers(self, endpoint_id: str, sent_s: float) -> bool:
        """A good answer begins, to a request sent then. One sent before the last failure says nothing of now.

        This and the next two return whether anything was learned.
        """
        record = self._records.get(endpoint_id)
        if record is None or sent_s < record.failed_s or (record.answers >= self._samples and record.lives):
            return False
        record.lives = True
        record.answers = min(record.answers + 1, self._samples)
        self._classify(endpoint_id)
        return True

    def answered(self, endpoint_id: str, sent_s: float) -> bool:
        """It was good to the end."""
        record = self._records.get(endpoint_id)
        if record is None or sent_s < record.failed_s or not record.failures:
            return False
        record.failures = 0
        return True

    def failed(self, endpoint_id: str, now_s: float) -> bool:
        """No answer, or one that says the server is broken."""
        record = self._records.get(endpoint_id)
        if record is None:
            return False
        record.failures += 1
        record.failed_s = now_s
        record.lives = False
        if self._is_failing(record):
            record.answers = 0
            wait_s = FIRST_WAIT_S * 2.0 ** min(record.failures - self._failures, 10)
            record.not_before_s = now_s + min(wait_s, MAX_WAIT_S)
            self._classify(endpoint_id)
        return True

    def remembered(self) -> list[tuple[str, tuple[int, int, bool, float, float]]]:
        """What another tracker has to `recall` to hold back the same endpoints."""
        return [
            (endpoint_id, (r.answers, r.failures, r.lives, r.failed_s, r.not_before_s))
            for endpoint_id, r in self._held_back.items()
        ]

    def recall(self, endpoint_id: str, remembered: tuple[int, int, bool, float, float]) -> None:
        """What another tracker knew of an endpoint that both know."""
        if endpoint_id in self._records:
            self._records[endpoint_id] = _Record(*remembered)
            self._classify(endpoint_id)

    def choose(
        self, rows: IntArray, row_by_id: Mapping[str, int], in_flight: FloatArray, now_s: float, rng: random.Random
    ) -> SlowStart | None:
        """Who is held back, and whose turn it is; `None` when there is nothing to say, which costs no chance either.

        Args:
            rows: snapshot rows of the candidates.
            row_by_id, in_flight: of the whole snapshot.
        """
        if not self._held_back:
            return None
        candidates = set(rows.tolist())
        held_back = np.zeros(len(in_flight), dtype=np.bool_)
        shares: dict[int, float] = {}
        turn: int | None = None
        for endpoint_id, record in self._held_back.items():
            row = row_by_id.get(endpoint_id)
            if row not in candidates or row is None:
                continue
            held_back[row] = True
            if self._is_failing(record):
                if turn is None and in_flight[row] == 0 and now_s >= record.not_before_s:
                    turn = row
            elif in_flight[row] <= record.answers:
                grown = record.answers / self._samples
                shares[row] = (FIRST_SHARE + (1 - FIRST_SHARE) * grown) / len(rows)
        if held_back.sum() in (0, len(rows)):
            return None
        return SlowStart(held_back, _drawn(shares, rng) if turn is None else turn)

    def state(self) -> Mapping[str, object]:
        """Endpoints that are new or failing, for the debug page."""
        return {
            endpoint_id: {"answers": record.answers, "failures": record.failures}
            for endpoint_id, record in self._held_back.items()
        }

    def _is_failing(self, record: _Record) -> bool:
        return 0 < self._failures <= record.failures and not record.lives

    def _classify(self, endpoint_id: str) -> None:
        record = self._records[endpoint_id]
        if record.answers < self._samples or self._is_failing(record):
            self._held_back[endpoint_id] = record
        else:
            self._held_back.pop(endpoint_id, None)


def _drawn(shares: Mapping[int, float], rng: random.Random) -> int | None:
    total = sum(shares.values())
    if total == 0:
        return None
    point = rng.random() * max(1.0, total / MAX_SHARE)
    for row, share in shares.items():
        point -= share
        if point < 0:
            return row
    return None


def without_held_back(cycle: Cycle, candidates: Candidates, key: DataKey[SlowStart]) -> Candidates:
    """The one whose turn it is, if it is a candidate; else those that are not held back, if there are any."""
    slow_start = cycle.get(key)
    if slow_start is None:
        return candidates
    if slow_start.turn is not None:
        chosen = candidates.where(candidates.rows == slow_start.turn)
        if len(chosen):
            return chosen
    others = candidates.where(~slow_start.held_back[candidates.rows])
    return others if len(others) else candidates


def zero_for_others(scores: FloatArray, eligible: Candidates, candidates: Candidates) -> FloatArray:
    """The scores of those who are eligible, and 0 for the other candidates."""
    if len(eligible) == len(candidates):
        return scores
    everybody = np.zeros(len(candidates))
    everybody[np.isin(candidates.rows, eligible.rows)] = scores
    return everybody
