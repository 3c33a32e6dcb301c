"""Verdicts on `ours`, and sweeps that stop early."""

import pytest

from epp.lab.sweep import highest_load
from epp.lab.verdict import verdict


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
