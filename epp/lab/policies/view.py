"""What the lab's small policies have in common: they look at a few numbers per candidate and take the best one."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epp.plugins._signals import known_or_mean
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import (
    IN_FLIGHT_LOAD,
    PREFIX_MATCH,
    UNCACHED_TOKENS,
    BoolArray,
    DataKey,
    FloatArray,
)
from epp.scheduling.plugin import Picker


@dataclass(frozen=True, slots=True)
class View:
    """One float per candidate. What no metrics page says is 0, or, of some, the mean of the others.

    Attributes:
        requests: ours in flight.
        prefill_tokens: prompt tokens of those that are not computed yet.
        decode_tokens: context of those past their first token.
        uncached_tokens: of this prompt, to be computed there.
        match_ratio: of this prompt, cached there, 0..1.
        waiting, running, kv_usage_ratio: by the servers' own word, however old.
    """

    requests: FloatArray
    prefill_tokens: FloatArray
    decode_tokens: FloatArray
    uncached_tokens: FloatArray
    match_ratio: FloatArray
    waiting: FloatArray
    running: FloatArray
    kv_usage_ratio: FloatArray


class ViewPicker(Picker):
    """Takes one of the candidates that `best` marks, by chance if there are several."""

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return IN_FLIGHT_LOAD.by(None), PREFIX_MATCH.by(None), UNCACHED_TOKENS.by(None)

    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        best = np.flatnonzero(self.best(cycle, view_of(cycle, candidates)))
        chosen = best[0] if best.size == 1 else cycle.rng.choice(best.tolist())
        return (int(candidates.rows[chosen]),)

    @abstractmethod
    def best(self, cycle: Cycle, view: View) -> BoolArray:
        """Whom it would take, at least one."""


def view_of(cycle: Cycle, candidates: Candidates) -> View:
    load, match = cycle.get(IN_FLIGHT_LOAD.by(None)), cycle.get(PREFIX_MATCH.by(None))
    uncached, snapshot = cycle.get(UNCACHED_TOKENS.by(None)), candidates.snapshot
    nothing = np.zeros(len(candidates))
    return View(
        requests=nothing if load is None else candidates.take(load.requests),
        prefill_tokens=nothing if load is None else candidates.take(load.prefill_tokens),
        decode_tokens=nothing if load is None else candidates.take(load.decode_tokens),
        uncached_tokens=nothing if uncached is None else candidates.take(uncached.prefill_tokens),
        match_ratio=nothing if match is None else candidates.take(match.ratio),
        waiting=_known(candidates, snapshot.waiting_requests),
        running=_known(candidates, snapshot.running_requests),
        kv_usage_ratio=_known(candidates, snapshot.kv_cache_usage_ratio),
    )


def _known(candidates: Candidates, column: FloatArray) -> FloatArray:
    known = known_or_mean(candidates.take(column))
    return np.zeros(len(candidates)) if known is None else known


def lowest(cost: FloatArray) -> BoolArray:
    """Where it is lowest."""
    marked: BoolArray = cost == cost.min()
    return marked
