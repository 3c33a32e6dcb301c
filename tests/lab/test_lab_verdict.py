"""Verdicts on `ours`, and sweeps that stop early."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from epp.cli import main
from epp.lab.parallel import ProgressBar
from epp.lab.runs import NothingToMeasure, run_spec
from epp.lab.spec import RunSpec
from epp.lab.sweep import MOST_RUNS, Goodput, highest_load, sweep
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


def swept(monkeypatch: pytest.MonkeyPatch, kept: Callable[[float, int], float | None], seeds: int = 2) -> Goodput:
    """A sweep of runs that keep so much at a load, as a share of the knee, and with a seed; `None`: nothing arrives."""

    def attained(spec: RunSpec) -> Any:
        value = kept(spec.rate_rps / 17.0, spec.seed)
        if value is None:
            raise NothingToMeasure("nothing arrives")
        return SimpleNamespace(figures={"attainment": value, "throughput_rps": 17.0}, plugin_failures={})

    monkeypatch.setattr("epp.lab.sweep.run_spec", attained)
    pair = ("azure-conv", "h100")
    (found,) = sweep([pair], ["lmetric"], seeds, {pair: 17.0}, RunSpec("", "", "", 0.0, 0.0), jobs=1, scale=0.001)
    return found


def test_a_seed_that_shows_nothing_says_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    both = swept(monkeypatch, lambda load, seed: 1.0 if load < 0.8 else 0.0)
    one = swept(monkeypatch, lambda load, seed: (1.0 if load < 0.8 else 0.0) if seed == 1 or load > 1.4 else None)
    assert 0.7 < both.load_by_ratio[0.9] == one.load_by_ratio[0.9] < 0.8
    assert [loads[0] for loads in one.loads_by_seed.values()] == list(one.load_by_ratio.values())


def test_where_nothing_is_measured_nothing_is_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where a higher load does not keep it, of a lower one at which there is nothing to measure nobody can ask."""
    with pytest.raises(Problem, match=r"at 0\.75 of the knee .* nothing to measure arrives in .* a higher --scale"):
        swept(monkeypatch, lambda load, seed: 1.0 if load > 1.4 else None)
    with pytest.raises(Problem, match="nothing to measure arrives in"):
        swept(monkeypatch, lambda load, seed: None if 0.75 < load < 1.4 else 1.0)
    hopeless = swept(monkeypatch, lambda load, seed: 0.0 if load > 0.5 else None, seeds=1)
    assert set(hopeless.load_by_ratio.values()) == {0.0}
    assert min(hopeless.attainment_by_load) > 0.5


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--scale 1e-9", "at 0.75 of the knee (13 rps) nothing to measure arrives in 6e-08 s; say a higher --scale"),
        ("--scale 1e9", "are of more than 5,000,000 requests; say a lower --scale"),
        ("--duration 1000h", "are of more than 5,000,000 requests; say a lower --duration"),
        ("--streamed 0", "--streamed 0: only answers that stream keep targets"),
        ("--streamed 0.0001 --duration 1s", "say a longer --duration, or a higher --streamed"),
        ("--duration 1ms", "nothing to measure arrives even at 1.5 of the knee; say a longer --duration"),
    ],
)
def test_a_sweep_that_cannot_be_says_what_to_change(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "sweep", "--pool", "h100", "--policies", "random", "--jobs", "1", *flags.split()]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
