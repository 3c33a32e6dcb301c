"""The scheduler: profiles, and the loop in which a handler says which of them run.

A profile is a funnel. Its filters narrow the candidates one after another; each of its scorers gives every survivor a
number in [0, 1]; the numbers are weighted and summed (never divided by the weights, as in llm-d); its picker takes one
or more. What each step did is kept, because a decision that cannot be explained cannot be trusted.

A plugin that raises, or returns what it must not, costs its own contribution and never the request: its filter lets all
pass, its scores count as 0, its pick is replaced by the best total.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.decision import Decision, Denial, FilterStep, ProfileResult
from epp.scheduling.instruments import ExtensionPoint, Instruments, Recorder
from epp.scheduling.plugin import Filter, Picker, ProfileHandler, Scorer

NO_ENDPOINT_LEFT = "no endpoints available for the given request"
NO_PRIMARY = "failed to find target endpoint"


@dataclass(frozen=True, slots=True)
class Profile:
    """A named funnel. `scorers` come with their weights, which may be zero or negative."""

    name: str
    filters: Sequence[Filter]
    scorers: Sequence[tuple[Scorer, float]]
    picker: Picker


class Scheduler:
    """Runs the profiles that `profile_handler` asks for, until it asks for no more.

    Args:
        profiles: in the order of the configuration; names are unique.
        recorder, timer: where failures and durations go; see `Instruments`.
    """

    def __init__(
        self,
        profile_handler: ProfileHandler,
        profiles: Sequence[Profile],
        recorder: Recorder | None = None,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self._instruments = Instruments(recorder, timer)
        self._handler = profile_handler
        hook = self._instruments.hook
        self._pick_profiles = hook(ExtensionPoint.PROFILE_PICKER, profile_handler, profile_handler.pick_profiles)
        self._process_results = hook(ExtensionPoint.PROCESS_RESULTS, profile_handler, profile_handler.process_results)
        self._names = tuple(p.name for p in profiles)
        self._runs = {p.name: _ProfileRun(p, self._instruments) for p in profiles}

    def schedule(self, cycle: Cycle, candidates: Candidates) -> Decision | Denial:
        """Every profile is given the same `candidates`, of which there is at least one."""
        results: dict[str, ProfileResult | None] = {}
        while wanted := self._wanted(cycle, results):
            for name in wanted:
                results[name] = self._runs[name](cycle, candidates)
        primary = self._primary(cycle, results)
        result = None if primary is None else results.get(primary)
        if primary is None or result is None:
            return Denial.saturated(NO_ENDPOINT_LEFT if None in results.values() else NO_PRIMARY)
        endpoints = candidates.snapshot.endpoints
        return Decision(
            snapshot=candidates.snapshot,
            endpoints=tuple(endpoints[row] for row in result.picked),
            primary=primary,
            profiles=results,
        )

    def _wanted(self, cycle: Cycle, results: dict[str, ProfileResult | None]) -> Sequence[str]:
        """What the handler wants next. A profile runs once, so the loop ends whatever the handler says."""
        if len(results) == len(self._names):
            return ()
        began_s = self._instruments.timer()
        try:
            names = self._pick_profiles.call(cycle, self._names, results)
            return [name for name in dict.fromkeys(names) if name in self._runs and name not in results]
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PROFILE_PICKER, self._handler, cycle, error)
            return () if results else self._names[:1]
        finally:
            self._pick_profiles.took(self._instruments.timer() - began_s)

    def _primary(self, cycle: Cycle, results: dict[str, ProfileResult | None]) -> str | None:
        began_s = self._instruments.timer()
        try:
            return self._process_results.call(cycle, results)
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PROCESS_RESULTS, self._handler, cycle, error)
            return next((name for name, result in results.items() if result is not None), None)
        finally:
            self._process_results.took(self._instruments.timer() - began_s)


class _ProfileRun:
    """A profile whose plugins are bound to their instruments.

    Scorers of which nothing has changed since the last request give the very same array again. What was made of it,
    clamped, weighted and added to the scores before, is kept: in the default profile that is two scorers of three.
    """

    def __init__(self, profile: Profile, instruments: Instruments) -> None:
        self._name = profile.name
        self._instruments = instruments
        self._filters = instruments.hooks(ExtensionPoint.FILTER, profile.filters, lambda plugin: plugin.filter)
        self._scorers = instruments.hooks(ExtensionPoint.SCORER, [s for s, _ in profile.scorers], lambda p: p.score)
        self._weights = tuple(weight for _, weight in profile.scorers)
        self._kept: list[_Kept | None] = [None] * len(profile.scorers)
        self._picker = instruments.hook(ExtensionPoint.PICKER, profile.picker, profile.picker.pick)

    def __call__(self, cycle: Cycle, candidates: Candidates) -> ProfileResult | None:
        """`None` when the filters left nobody over."""
        steps: tuple[FilterStep, ...] = ()
        cycle.profile = self._name
        if self._filters:
            candidates, steps = self._filtered(cycle, candidates)
            if steps[-1].after == 0:
                cycle.notes[steps[-1].plugin] = f"dropped all {steps[-1].before} candidates of profile {self._name}"
                return None
        scores, totals = self._scored(cycle, candidates)
        return ProfileResult(
            self._name, candidates.rows, totals, scores, self._picked(cycle, candidates, totals), steps
        )

    def _filtered(self, cycle: Cycle, candidates: Candidates) -> tuple[Candidates, tuple[FilterStep, ...]]:
        """Who is left, up to the filter that leaves nobody."""
        steps: list[FilterStep] = []
        after = len(candidates)
        timer = self._instruments.timer
        began_s = timer()
        for plugin, narrow, took in self._filters:
            before, reason = after, ""
            try:
                left = narrow(cycle, candidates)
                if left is not candidates:
                    if len(left) > before:
                        raise ValueError(f"a filter made {len(left)} candidates out of {before}")
                    if len(left) < before:
                        reason = plugin.drop_reason()
                    candidates, after = left, len(left)
            except Exception as error:
                self._instruments.failed(ExtensionPoint.FILTER, plugin, cycle, error)
            ended_s = timer()
            took(ended_s - began_s)
            began_s = ended_s
            steps.append(FilterStep(plugin.name, before, after, reason))
            if not after:
                break
        return candidates, tuple(steps)

    def _scored(self, cycle: Cycle, candidates: Candidates) -> tuple[Mapping[str, FloatArray], FloatArray]:
        """Scores clamped to [0, 1], NaN as 0, of every scorer that has some to use; and their weighted sum."""
        scores: dict[str, FloatArray] = {}
        totals: FloatArray | None = None
        timer = self._instruments.timer
        began_s = timer()
        for i, (plugin, score, took) in enumerate(self._scorers):
            try:
                raw = np.asarray(score(cycle, candidates), dtype=np.float64)
                if raw.shape != candidates.rows.shape:
                    raise ValueError(f"scores of shape {raw.shape} for {len(candidates)} candidates")
                kept = self._kept[i]
                if kept is None or kept.raw is not raw or kept.before is not totals:
                    kept = _Kept.of(raw, self._weights[i], totals)
                    self._kept[i] = None if raw.flags.writeable else kept.frozen()
                scores[plugin.name], totals = kept.column, kept.totals
            except Exception as error:
                self._instruments.failed(ExtensionPoint.SCORER, plugin, cycle, error)
            ended_s = timer()
            took(ended_s - began_s)
            began_s = ended_s
        return scores, np.zeros(len(candidates)) if totals is None else totals

    def _picked(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> tuple[int, ...]:
        began_s = self._instruments.timer()
        try:
            picked = tuple(map(int, self._picker.call(cycle, candidates, totals)))
            if not picked or not all(row in candidates for row in picked):
                raise ValueError("the pick is not among the candidates")
            return picked
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PICKER, self._picker.plugin, cycle, error)
            return (int(candidates.rows[totals.argmax()]),)
        finally:
            self._picker.took(self._instruments.timer() - began_s)


class _Kept(NamedTuple):
    """What was made of one scorer's scores.

    Attributes:
        raw: as the scorer gave them; it cannot write to them any more.
        before: the sum of the scorers before it, the very array.
        column: clamped to [0, 1], NaN as 0.
        totals: `before`, and `column` by its weight.
    """

    raw: FloatArray
    before: FloatArray | None
    column: FloatArray
    totals: FloatArray

    @staticmethod
    def of(raw: FloatArray, weight: float, before: FloatArray | None) -> "_Kept":
        column = np.minimum(np.fmax(raw, 0.0), 1.0)  # fmax, unlike maximum, prefers the number to the NaN
        weighted = weight * column
        totals = weighted if before is None else before + weighted
        return _Kept(raw, before, column, totals)

    def frozen(self) -> "_Kept":
        """So that whoever gets it again gets the same."""
        self.column.flags.writeable = self.totals.flags.writeable = False
        return self
