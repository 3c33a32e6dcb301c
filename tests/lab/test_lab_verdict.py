"""Verdicts on `ours`, and sweeps that stop early."""

from dataclasses import replace

import pytest

from epp.lab.parallel import ProgressBar
from epp.lab.runs import run_spec
from epp.lab.spec import RunSpec
from epp.lab.sweep import MOST_RUNS, highest_load, sweep
from epp.lab.verdict import verdict
from epp.lab.workloads.workload import Targets
from epp.problem import Problem


@pytest.mark.parametrize(
    ("ours", "theirs", "kept", "words"),
    [
        ((0.95, 0.97), (0.90, 0.91), True, "best, other is 5.5% behind"),
        ((0.95, 0.90), (0.90, 0.94), True, "tied with other (+0.5% ±6.4%)"),
        ((0.90, 0.91), (0.95, 0.96), False, "behind other by 5.0%"),
        ((0.9,), (0.9,), True, "tied with other (+0.0% ±0.0%)"),
    ],
    ids=["best", "tied", "behind", "one-seed"],
)
def test_seeds_are_compared_in_pairs(ours, theirs, kept: bool, words: str) -> None:
    found = verdict({"worst": [0.1] * len(ours), "other": theirs, "ours": ours})
    assert found is not None
    assert (found.kept, found.words(".1%")) == (kept, words)


def test_nobody_to_compare_with_is_no_verdict() -> None:
    assert verdict({"ours": [1.0]}) is None
    assert verdict({"lmetric": [1.0]}) is None


def test_knowing_only_whether_a_step_keeps_the_ratio_finds_the_same_load() -> None:
    asked = []

    def attainment(step: int) -> float:
        asked.append(step)
        return 1.0 - (step / 60) ** 3

    whole, steps = highest_load(attainment, 0.9), set(asked)
    asked.clear()
    assert highest_load(attainment, 0.9, lambda step, ratio: 1.0 - (step / 60) ** 3 >= ratio) == whole
    assert len(asked) == 2 < len(steps)


def test_the_progress_of_a_sweep_steps_with_runs_and_ends_full(monkeypatch) -> None:
    """One policy, one process: each run moves it, and at its end it is as long as there were runs."""
    seen: list[tuple[int, int]] = []

    class Noted(ProgressBar):
        def step(self, cost: float = 1.0) -> None:
            super().step(cost)
            seen.append((self._done, self._total))

        def __exit__(self, *_: object) -> None:
            seen.append((self._done, self._total))

    monkeypatch.setattr("epp.lab.sweep.ProgressBar", Noted)
    pair, like = ("azure-conv", "h100"), RunSpec("", "", "", 0.0, 3.0)
    (found,) = sweep([pair], ["lmetric"], 2, {pair: 17.0}, like, jobs=1)
    assert [done for done, _ in seen[:-1]] == list(range(1, len(seen)))
    assert {total for _, total in seen[:-1]} == {1 + 2 * MOST_RUNS}
    assert seen[-1] == (len(seen) - 1, len(seen) - 1)
    assert 1 + 2 * len(found.attainment_by_load) <= len(seen) - 1 <= 1 + 2 * MOST_RUNS
    at_most = replace(like, workload=pair[0], pool=pair[1], policy="lmetric", rate_rps=1.5 * 17.0, seed=1)
    assert 0.0 < found.own_knee_rps == run_spec(at_most).figures["throughput_rps"]


def test_a_sweep_goes_on_where_so_little_arrives_that_nothing_is_measured() -> None:
    """Nobody keeps these targets, so it comes down to loads at which half a second brings no request."""
    pair, like = ("azure-conv", "h100"), RunSpec("", "", "", 0.0, 0.5, targets=Targets(0.001, 0.001))
    (found,) = sweep([pair], ["lmetric"], 1, {pair: 17.0}, like, jobs=1)
    assert set(found.load_by_ratio.values()) == {0.0}
    assert min(found.attainment_by_load) * 17.0 * 0.5 < 1.0
    with pytest.raises(Problem, match="say a longer --duration"):
        sweep([pair], ["lmetric"], 1, {pair: 17.0}, replace(like, duration_s=0.01), jobs=1)
