"""New servers and servers that fail: tried, not flooded.

A server that nobody has used yet cannot be compared with the others, and a server that fails at once looks idle, and
so fast, to everything that counts what is in flight. Neither is left to the predictions:

* *new*: until it has begun `samples` good answers it gets, by chance, a share of the requests that grows from a tenth
  of a fair share to a whole one, and never more in flight than it has begun to answer, plus one;
* *failing*: after `failures` failures in a row it gets one request at a time, and waits between them, 1 s at first and
  twice as long after each request that was tried in vain, up to 16 s. What was under way when it broke down is one
  failure, however many requests that were. The first token of a good answer ends that, so that nobody waits for the
  last one of a long answer; it takes a whole one to make the failures forgotten, or the first tokens of twenty. Where
  answers are long and one request in a hundred fails, a whole one may never come between two failures.

How soon it has its share again is a matter of trust. A server that had served well for a minute is *trusted*: it is
tried as soon as its metrics page, which had fallen silent, is read again, and once it answers it competes with the
others, with no more in flight than it has begun to answer, plus one: what it can do is known. One that breaks down
within a minute of its recovery waits four times as long as before, page or not, and starts like a new one, as does one
that broke down before it had served for a minute: a server that comes and goes would otherwise lose all that it was
given each time.

When all candidates are new or failing there is nothing to compare them with, and nobody is held back.
"""

import random
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import inf

import numpy as np

from epp.plugins._signals import STALE_AFTER_S
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DataKey, FloatArray, IntArray, SlowStart

FIRST_SHARE = 0.1  # of a fair share, for a server that has answered nothing yet
MAX_SHARE = 0.5  # of all requests, for all new servers together
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 16.0
RELAPSE_FACTOR = 4.0  # on the wait, for who breaks down again before it is trusted
TRUST_AFTER_S = 60.0  # of good service
FORGIVEN_AFTER_ANSWERS = 20  # begun since the last failure


@dataclass(slots=True)
class _Record:
    """
    Attributes:
        lives: has begun a good answer since the last failure.
        begun: how many since then; 0 without failures.
        lives_since_s: when it began the first after it was new or failing; -inf: it has been there all the time; inf:
            it has begun none yet.
        wait_s: the last one; 0 before any.
        trusted: had served well for long when it broke down; `False` as long as it never did.
        silent, heard: since then its metrics page has been too old to be believed, and after that was read again.
    """

    answers: int
    failures: int = 0
    lives: bool = True
    lives_since_s: float = -inf
    failed_s: float = -inf
    wait_s: float = 0.0
    not_before_s: float = 0.0
    trusted: bool = False
    silent: bool = False
    heard: bool = False
    begun: int = 0


Remembered = tuple[int, int, bool, float, float, float, float, bool, bool, bool, int]
"""A `_Record`, for another process."""


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
        record = self._records[endpoint_id] = _Record(min(answers, self._samples))
        if record.answers < self._samples:
            record.lives_since_s = inf
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
        if record is None or sent_s < record.failed_s:
            return False
        if record.answers >= self._samples and record.lives and not record.failures:
            return False
        if record.failures:
            record.begun += 1
            if record.begun >= FORGIVEN_AFTER_ANSWERS:
                record.failures = record.begun = 0
        if record.lives_since_s == inf:
            record.lives_since_s = sent_s
        record.lives = True
        record.answers = min(record.answers + 1, self._samples)
        self._classify(endpoint_id)
        return True

    def answered(self, endpoint_id: str, sent_s: float) -> bool:
        """It was good to the end."""
        record = self._records.get(endpoint_id)
        if record is None or sent_s < record.failed_s or not record.failures:
            return False
        record.failures = record.begun = 0
        return True

    def failed(self, endpoint_id: str, sent_s: float, now_s: float) -> bool:
        """No answer to a request sent then, or one that says the server is broken."""
        record = self._records.get(endpoint_id)
        if record is None:
            return False
        was_failing = self._is_failing(record)
        if was_failing and sent_s < record.failed_s:
            return False  # under way when it broke down: that it is down is known
        record.failures += 1
        record.begun = 0
        record.failed_s = now_s
        record.lives = False
        if self._is_failing(record):
            if not was_failing:
                record.trusted = now_s - record.lives_since_s >= TRUST_AFTER_S
                record.lives_since_s = inf
                record.silent = record.heard = False
            if record.wait_s and (was_failing or not record.trusted):
                record.wait_s = min((2.0 if was_failing else RELAPSE_FACTOR) * record.wait_s, MAX_WAIT_S)
            else:
                record.wait_s = FIRST_WAIT_S
            record.not_before_s = now_s + record.wait_s
            record.answers = 0
            self._classify(endpoint_id)
        return True

    def remembered(self) -> list[tuple[str, Remembered]]:
        """What another tracker has to `recall` to hold back the same endpoints."""
        return [(endpoint_id, astuple(record)) for endpoint_id, record in self._held_back.items()]

    def recall(self, endpoint_id: str, remembered: Remembered) -> None:
        """What another tracker knew of an endpoint that both know."""
        if endpoint_id in self._records:
            self._records[endpoint_id] = _Record(*remembered)
            self._classify(endpoint_id)

    def choose(
        self, rows: IntArray, snapshot: Snapshot, in_flight: FloatArray, now_s: float, rng: random.Random
    ) -> SlowStart | None:
        """Who is held back, and whose turn it is; `None` when there is nothing to say, which costs no chance either.

        Args:
            rows: snapshot rows of the candidates.
            in_flight: of the whole snapshot.
        """
        if not self._held_back:
            return None
        candidates = set(rows.tolist())
        believed = snapshot.is_fresh(now_s, STALE_AFTER_S)
        held_back = np.zeros(len(in_flight), dtype=np.bool_)
        shares: dict[int, float] = {}
        turn: int | None = None
        found = 0
        for endpoint_id, record in self._held_back.items():
            row = snapshot.row_by_id.get(endpoint_id)
            if row not in candidates or row is None:
                continue
            found += 1
            held_back[row] = True
            if self._is_failing(record):
                _listen(record, bool(believed[row]), now_s)
                if turn is None and in_flight[row] == 0 and now_s >= record.not_before_s:
                    turn = row
            elif in_flight[row] <= record.answers:
                if record.trusted:
                    held_back[row] = False
                else:
                    grown = record.answers / self._samples
                    shares[row] = (FIRST_SHARE + (1 - FIRST_SHARE) * grown) / len(rows)
        if found == len(rows) or not held_back.any():
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


def _listen(record: _Record, page_is_believed: bool, now_s: float) -> None:
    """A page that is read again after a silence is a sign of life that costs nobody a request; once, for pages that
    come and go say nothing."""
    if not page_is_believed:
        record.silent = True
    elif record.silent and not record.heard:
        record.heard = True
        if record.trusted:
            record.not_before_s = min(record.not_before_s, now_s)


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
