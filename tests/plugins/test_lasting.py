"""How much of a burst is still there while an answer is made."""

import numpy as np
import pytest

from epp.plugins._lasting import Lasting


def told(lasting, answers, *, more, more_on_average):
    for _ in range(answers):
        lasting.add(more, more_on_average)


def test_all_is_taken_to_last_until_some_answers_say_otherwise():
    lasting = Lasting()
    told(lasting, 3, more=1.0, more_on_average=0.0)
    assert lasting.ratio > 0.9
    told(lasting, 100, more=10.0, more_on_average=0.0)
    assert lasting.ratio < 0.1


@pytest.mark.parametrize(("before", "since"), [(0.0, 1.0), (1.0, 0.0), (0.8, 0.4)])
def test_what_lasts_is_what_has_lasted_of_late(before, since):
    lasting = Lasting()
    for ratio in (before, since):
        told(lasting, 1500, more=-10.0, more_on_average=-10.0 * ratio)
    assert lasting.ratio == pytest.approx(since, abs=0.05)


def test_what_the_candidates_have_comes_closer_to_their_mean():
    lasting = Lasting()
    told(lasting, 1500, more=10.0, more_on_average=5.0)
    assert lasting.on_average(np.array([40.0, 0.0])) == pytest.approx([30.0, 10.0], rel=0.01)
