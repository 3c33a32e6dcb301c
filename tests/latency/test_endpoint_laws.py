"""Each server has a law of its own; a new one is like the pool; one that changes is followed."""

import random

import numpy as np
import pytest

from epp.latency.endpoint_laws import EndpointLaws

FAST, SLOW = (28.0, 0.0185), (34.0, 0.059)  # ms, and ms per token, of an H100 and an A100


def taught(samples=200, seed=1, **servers):
    rng, laws = random.Random(seed), EndpointLaws((28.0, 0.0185))
    for _ in range(samples):
        for endpoint_id, (constant, per_token) in servers.items():
            tokens = rng.lognormvariate(6.6, 1.0)
            laws.observe(endpoint_id, (1.0, tokens), (constant + per_token * tokens) * rng.lognormvariate(0, 0.1))
    return laws


def test_servers_differ_in_each_coefficient_not_by_one_factor():
    laws = taught(fast=FAST, slow=SLOW).of(("fast", "slow"))
    assert laws[1] == pytest.approx([FAST[1], SLOW[1]], rel=0.15)
    assert laws[1][1] / laws[1][0] > 2 * laws[0][1] / laws[0][0]


def test_a_server_never_heard_of_is_like_the_pool():
    laws = taught(one=SLOW, other=SLOW)
    assert laws.of(("one", "new"))[:, 1] == pytest.approx(laws.of(("one", "new"))[:, 0], rel=0.15)


def test_a_server_that_slows_down_is_found_to_within_seconds_of_traffic():
    laws, ids = taught(a=FAST, b=FAST), ("a", "b")
    before = laws.of(ids)[1].copy()
    for _ in range(40):
        laws.observe("a", (1.0, 1000.0), 2 * (FAST[0] + FAST[1] * 1000.0))
    after = laws.of(ids)[1]
    assert after[0] / before[0] == pytest.approx(2.0, rel=0.2)
    assert after[1] / before[1] == pytest.approx(1.0, rel=0.05)


def test_what_was_asked_for_before_follows_what_is_learned_since():
    laws, ids = EndpointLaws((28.0, 0.0185)), ("a",)
    before = laws.of(ids).copy()
    for _ in range(30):
        laws.observe("a", (1.0, 1000.0), 200.0)
    kept = laws.of(ids).copy()
    assert (kept == laws.of(("a", "b"))[:, :1]).all()
    assert kept.T[0] @ (1.0, 1000.0) == pytest.approx(200.0, rel=0.1)
    assert before.T[0] @ (1.0, 1000.0) == pytest.approx(46.5)


def test_the_spread_says_how_far_off_it_is():
    assert taught(fast=FAST).spread == pytest.approx(0.1, rel=0.4)


def test_who_leaves_the_pool_is_forgotten():
    laws = taught(fast=FAST, slow=SLOW)
    laws.keep({"fast": 0})
    assert list(laws.state()["endpoints"]) == ["fast"]


@pytest.mark.parametrize("actual_ms", [0.0, -1.0, float("nan")])
def test_what_is_no_measurement_teaches_nothing(actual_ms):
    laws = EndpointLaws((28.0, 0.0185))
    laws.observe("a", (1.0, 100.0), actual_ms)
    assert np.array_equal(laws.of(("a",))[:, 0], [28.0, 0.0185])


def test_who_looked_slow_and_has_had_nothing_since_is_taken_to_be_like_the_pool_again():
    """Where load is light it would have no requests for good, and no chance to show that it no longer is."""
    laws, ids = taught(samples=60, a=FAST, b=FAST, slow=SLOW), ("a", "b", "slow")
    at_first = laws.of(ids)[1].copy()
    assert at_first[2] > 2 * at_first[0]
    for _ in range(30):
        laws.observe("a", (1.0, 1000.0), FAST[0] + FAST[1] * 1000.0)
    assert laws.of(ids)[1][2] == pytest.approx(at_first[2], rel=0.02), "a pause is nothing"
    for _ in range(3000):
        laws.observe("a", (1.0, 1000.0), FAST[0] + FAST[1] * 1000.0)
    assert laws.of(ids)[:, 2] == pytest.approx(laws.of(("never heard of",))[:, 0], rel=0.01)
    for _ in range(20):
        laws.observe("slow", (1.0, 1000.0), SLOW[0] + SLOW[1] * 1000.0)
    assert laws.of(ids)[:, 2] @ (1.0, 1000.0) > 1.7 * (FAST[0] + FAST[1] * 1000.0), "it still is"
