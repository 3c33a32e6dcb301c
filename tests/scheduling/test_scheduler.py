import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_fakes import FakeRecorder, a_cycle, best, fake, filter_, pool, run_once, scorer

from epp.scheduling import plugin as roles
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.scheduler import Profile, Scheduler


def one_profile(
    filters: Sequence[Any] = (), scorers: Sequence[Any] = (), picker: Any = None, recorder: Any = None
) -> Scheduler:
    return Scheduler(run_once(), [Profile("default", filters, scorers, picker or best())], recorder)


def decided(scheduler: Scheduler, size: int, cycle: Any = None) -> Decision:
    decision = scheduler.schedule(cycle or a_cycle(), pool(size))
    assert isinstance(decision, Decision)
    return decision


def test_total_is_the_weighted_sum_without_division() -> None:
    scheduler = one_profile(scorers=[(scorer("a", [0.0, 0.5, 1.0]), 2.0), (scorer("b", [1.0, 1.0, 0.0]), 3.0)])
    decision = decided(scheduler, 3)
    result = decision.profiles["default"]
    assert result is not None
    assert result.totals.tolist() == [3.0, 4.0, 2.0]
    assert [e.name for e in decision.endpoints] == ["pod-1", "pod-0", "pod-2"]
    assert decision.destination == "10.0.0.2:8000,10.0.0.1:8000,10.0.0.3:8000"


def test_scores_are_clamped_and_nan_counts_as_zero() -> None:
    result = decided(one_profile(scorers=[(scorer("a", [math.nan, -3.0, 7.0, math.inf]), 1.0)]), 4).profiles["default"]
    assert result is not None
    assert result.scores["a"].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_zero_and_negative_weights_are_honoured() -> None:
    scheduler = one_profile(scorers=[(scorer("a", [1.0, 0.5]), -1.0), (scorer("b", [0.0, 1.0]), 0.0)])
    assert decided(scheduler, 2).endpoints[0].name == "pod-1"


def test_filters_run_in_order_and_each_sees_what_the_last_one_left() -> None:
    seen: list[list[int]] = []

    def without(row: int) -> Any:
        def keep(candidates: Any) -> Any:
            seen.append(candidates.rows.tolist())
            return candidates.where(candidates.rows != row)

        return filter_(f"without-{row}", keep)

    result = decided(one_profile(filters=[without(2), without(0)]), 4).profiles["default"]
    assert result is not None
    assert seen == [[0, 1, 2, 3], [0, 1, 3]]
    assert [(s.plugin, s.before, s.after, s.reason) for s in result.steps] == [
        ("without-2", 4, 3, "without-2"),
        ("without-0", 3, 2, "without-0"),
    ]
    assert result.rows.tolist() == [1, 3]


def test_filters_that_leave_nobody_are_a_429_and_stop_the_profile() -> None:
    def must_not_run(candidates: Any) -> Any:
        raise AssertionError

    cycle = a_cycle()
    nobody = filter_("nobody", lambda candidates: candidates.where(np.zeros(len(candidates), dtype=bool)))
    denial = one_profile(filters=[nobody, filter_("next", must_not_run)]).schedule(cycle, pool(3))
    assert denial == Denial.saturated("no endpoints available for the given request")
    assert cycle.notes == {"nobody": "dropped all 3 candidates of profile default"}


def broken(*_: Any) -> Any:
    raise RuntimeError("a prompt that nobody may read")


@pytest.mark.parametrize(
    ("filters", "scorers", "picker", "point", "name"),
    [
        ([filter_("f", broken)], [], None, "Filter", "f"),
        ([filter_("f", lambda candidates: pool(9))], [], None, "Filter", "f"),
        ([], [(scorer("s", RuntimeError("a prompt")), 1.0)], None, "Scorer", "s"),
        ([], [(scorer("s", [0.1]), 1.0)], None, "Scorer", "s"),
        ([], [(fake(roles.Scorer, "s", score=lambda *_: None), 1.0)], None, "Scorer", "s"),
        ([], [], fake(roles.Picker, "p", pick=broken), "Picker", "p"),
        ([], [], fake(roles.Picker, "p", pick=lambda *_: []), "Picker", "p"),
        ([], [], fake(roles.Picker, "p", pick=lambda *_: [17]), "Picker", "p"),
    ],
)
def test_a_broken_plugin_costs_its_contribution_never_the_request(
    filters: Any, scorers: Any, picker: Any, point: str, name: str
) -> None:
    recorder, cycle = FakeRecorder(), a_cycle()
    good = scorer("good", [0.0, 1.0, 0.5])
    decision = decided(one_profile(filters, [*scorers, (good, 1.0)], picker, recorder), 3, cycle)
    assert decision.endpoints[0].name == "pod-1"
    assert [(p, n) for p, n, _ in recorder.failures] == [(point, name)]
    assert cycle.notes[name].startswith(f"{point} failed: ")
    assert "prompt" not in str(cycle.notes)


def test_a_broken_handler_still_gives_a_decision() -> None:
    handler = fake(roles.ProfileHandler, "h", pick_profiles=broken, process_results=broken)
    recorder = FakeRecorder()
    scheduler = Scheduler(handler, [Profile("default", (), (), best()), Profile("x", (), (), best())], recorder)
    assert decided(scheduler, 2).primary == "default"
    assert {point for point, _, _ in recorder.failures} == {"ProfilePicker", "ProcessProfilesResults"}


def test_handler_sees_earlier_results_and_no_profile_runs_twice() -> None:
    asked: list[list[str]] = []

    def pick(cycle: Any, profiles: Sequence[str], results: Mapping[str, Any]) -> Sequence[str]:
        asked.append(list(results))
        return ["decode", "no-such-profile"] if not results else ["decode", "prefill"]

    handler = fake(roles.ProfileHandler, "h", pick_profiles=pick, process_results=lambda cycle, results: "decode")
    profiles = [Profile(name, (), (), best()) for name in ("prefill", "decode", "unused")]
    decision = decided(Scheduler(handler, profiles), 2)
    assert asked == [[], ["decode"], ["decode", "prefill"]]
    assert list(decision.profiles) == ["decode", "prefill"]


def test_a_failed_second_profile_is_none_and_the_primary_stands() -> None:
    nobody = filter_("nobody", lambda candidates: candidates.where(np.zeros(len(candidates), dtype=bool)))
    profiles = [Profile("decode", (), (), best()), Profile("prefill", [nobody], (), best())]
    decision = decided(Scheduler(run_once("decode"), profiles), 2)
    assert decision.profiles["prefill"] is None
    assert decision.profiles["decode"] is not None


def test_a_plugin_may_explain_each_profile() -> None:
    def score(cycle: Any, candidates: Any) -> Any:
        scores = candidates.rows / 10.0
        cycle.explain("s", candidates, {"tenths": scores})
        return scores

    odd = filter_("odd", lambda candidates: candidates.where(candidates.rows % 2 == 1))
    explaining = [(fake(roles.Scorer, "s", score=score), 1.0)]
    profiles = [Profile("decode", [odd], explaining, best()), Profile("prefill", (), explaining, best())]
    cycle = a_cycle()
    assert cycle.explanations is None
    decided(Scheduler(run_once("decode"), profiles), 4, cycle)
    explained = {key: (rows.tolist(), values["tenths"].tolist()) for key, (rows, values) in cycle.explanations.items()}
    assert explained == {
        ("decode", "s"): ([1, 3], [0.1, 0.3]),
        ("prefill", "s"): ([0, 1, 2, 3], [0.0, 0.1, 0.2, 0.3]),
    }


@pytest.mark.parametrize("primary", ["no-such-profile", None])
def test_no_primary_is_a_429_with_a_reason(primary: str | None) -> None:
    handler = fake(roles.ProfileHandler, "h", pick_profiles=lambda *_: (), process_results=lambda *_: primary)
    denial = Scheduler(handler, [Profile("default", (), (), best())]).schedule(a_cycle(), pool(1))
    assert denial == Denial.saturated("failed to find target endpoint")


def test_every_call_is_timed_under_its_extension_point() -> None:
    recorder, ticks = FakeRecorder(), iter(range(100))
    profile = Profile("default", [filter_("f", lambda c: c)], [(scorer("s", [1.0]), 1.0)], best("p"))
    Scheduler(run_once(), [profile], recorder, lambda: float(next(ticks))).schedule(a_cycle(), pool(1))
    assert [(point, name) for point, name, _ in recorder.calls] == [
        ("ProfilePicker", "handler"),
        ("Filter", "f"),
        ("Scorer", "s"),
        ("Picker", "p"),
        ("ProcessProfilesResults", "handler"),
    ]
    assert {seconds for _, _, seconds in recorder.calls} == {1.0}


scores = st.lists(st.lists(st.floats(allow_subnormal=False), min_size=4, max_size=4), max_size=4)


@settings(max_examples=100, deadline=None)
@given(values=scores, weights=st.lists(st.floats(-100, 100), min_size=4, max_size=4))
def test_any_scores_give_finite_totals_and_the_best_is_picked(values: Any, weights: Any) -> None:
    scorers = [(scorer(f"s{i}", v), w) for i, (v, w) in enumerate(zip(values, weights, strict=False))]
    result = decided(one_profile(scorers=scorers), 4).profiles["default"]
    assert result is not None
    assert np.isfinite(result.totals).all()
    assert result.totals[result.picked[0]] == result.totals.max()
    assert all(((column >= 0) & (column <= 1)).all() for column in result.scores.values())


@settings(max_examples=50, deadline=None)
@given(size=st.integers(1, 70), value=st.floats(0, 1), weights=st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_equal_endpoints_get_bitwise_equal_totals(size: int, value: float, weights: list[float]) -> None:
    scorers = [(scorer(f"s{i}", [value] * size), weight) for i, weight in enumerate(weights)]
    result = decided(one_profile(scorers=scorers), size).profiles["default"]
    assert result is not None
    assert len(set(result.totals.tolist())) == 1


def test_what_is_kept_of_scores_that_stay_never_outlives_them() -> None:
    """A scorer that gives the same array again has said the same again, unless it may have written to it."""
    fixed, other, changing = np.array([0.2, 0.9]), np.array([0.7, 0.1]), np.array([0.5, 0.5])
    fixed.flags.writeable = other.flags.writeable = False
    given: list[Any] = [fixed]
    scorers = [
        (fake(roles.Scorer, "first", score=lambda cycle, candidates: given[0]), 2.0),
        (fake(roles.Scorer, "second", score=lambda cycle, candidates: other), 1.0),
        (fake(roles.Scorer, "changing", score=lambda cycle, candidates: changing), 1.0),
    ]
    scheduler = one_profile(scorers=scorers)

    def totals() -> list[float]:
        result = decided(scheduler, 2).profiles["default"]
        assert result is not None
        return [float(total) for total in result.totals]

    for first in (fixed, fixed, other, other, fixed):
        given[0] = first
        for value in (0.5, 0.25):
            changing[:] = value
            assert totals() == [2.0 * f + o + value for f, o in zip(first, other, strict=True)]
