"""The scheduler: profiles, and the loop in which a handler says which of them run.

A profile is a funnel. Its filters narrow the candidates one after another; each of its scorers gives every survivor a
number in [0, 1]; the numbers are weighted and summed (never divided by the weights, as in llm-d); its picker takes one
or more. What each step did is kept, because a decision that cannot be explained cannot be trusted.

A plugin that raises, or returns what it must not, costs its own contribution and never the request: its filter lets all
pass, its scores count as 0, its pick is replaced by the best total.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
        self._pick_profiles = self._instruments.bind(
            ExtensionPoint.PROFILE_PICKER, profile_handler, profile_handler.pick_profiles
        )
        self._process_results = self._instruments.bind(
            ExtensionPoint.PROCESS_RESULTS, profile_handler, profile_handler.process_results
        )
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
        try:
            names = self._pick_profiles(cycle, self._names, results)
            return [name for name in dict.fromkeys(names) if name in self._runs and name not in results]
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PROFILE_PICKER, self._handler, cycle, error)
            return () if results else self._names[:1]

    def _primary(self, cycle: Cycle, results: dict[str, ProfileResult | None]) -> str | None:
        try:
            return self._process_results(cycle, results)
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PROCESS_RESULTS, self._handler, cycle, error)
            return next((name for name, result in results.items() if result is not None), None)


class _ProfileRun:
    """A profile whose plugins are bound to their instruments."""

    def __init__(self, profile: Profile, instruments: Instruments) -> None:
        self._name = profile.name
        self._instruments = instruments
        self._filters = instruments.hooks(ExtensionPoint.FILTER, profile.filters, lambda plugin: plugin.filter)
        self._scorers = instruments.hooks(ExtensionPoint.SCORER, [s for s, _ in profile.scorers], lambda p: p.score)
        self._weights = tuple(weight for _, weight in profile.scorers)
        self._picker = profile.picker
        self._pick = instruments.bind(ExtensionPoint.PICKER, profile.picker, profile.picker.pick)

    def __call__(self, cycle: Cycle, candidates: Candidates) -> ProfileResult | None:
        """`None` when the filters left nobody over."""
        steps: list[FilterStep] = []
        for filter_, narrow in self._filters:
            candidates, step = self._filtered(filter_, narrow, cycle, candidates)
            steps.append(step)
            if step.after == 0:
                cycle.notes[filter_.name] = f"dropped all {step.before} candidates of profile {self._name}"
                return None

        totals = np.zeros(len(candidates))
        scores: dict[str, FloatArray] = {}
        for (scorer, score), weight in zip(self._scorers, self._weights, strict=True):
            column = self._scored(scorer, score, cycle, candidates)
            if column is not None:
                scores[scorer.name] = column
                totals += weight * column
        return ProfileResult(
            profile=self._name,
            rows=candidates.rows,
            totals=totals,
            scores=scores,
            picked=self._picked(cycle, candidates, totals),
            steps=tuple(steps),
        )

    def _filtered(
        self, plugin: Filter, call: Callable[..., Candidates], cycle: Cycle, given: Candidates
    ) -> tuple[Candidates, FilterStep]:
        before = len(given)
        try:
            left = call(cycle, given)
            after = len(left)
            if after > before:
                raise ValueError(f"a filter made {after} candidates out of {before}")
            return left, FilterStep(plugin.name, before, after, plugin.drop_reason() if after < before else "")
        except Exception as error:
            self._instruments.failed(ExtensionPoint.FILTER, plugin, cycle, error)
            return given, FilterStep(plugin.name, before, before, "")

    def _scored(
        self, plugin: Scorer, call: Callable[..., FloatArray], cycle: Cycle, candidates: Candidates
    ) -> FloatArray | None:
        """Scores clamped to [0, 1], NaN as 0; `None` when there are none to use."""
        try:
            raw = np.asarray(call(cycle, candidates), dtype=np.float64)
            if raw.shape != candidates.rows.shape:
                raise ValueError(f"scores of shape {raw.shape} for {len(candidates)} candidates")
        except Exception as error:
            self._instruments.failed(ExtensionPoint.SCORER, plugin, cycle, error)
            return None
        return np.minimum(np.fmax(raw, 0.0), 1.0)  # fmax, unlike maximum, prefers the number to the NaN

    def _picked(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> tuple[int, ...]:
        try:
            picked = tuple(map(int, self._pick(cycle, candidates, totals)))
            if not picked or not set(candidates.rows.tolist()).issuperset(picked):
                raise ValueError("the pick is not among the candidates")
            return picked
        except Exception as error:
            self._instruments.failed(ExtensionPoint.PICKER, self._picker, cycle, error)
            return (int(candidates.rows[totals.argmax()]),)
