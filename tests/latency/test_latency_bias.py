import random
from math import exp, log

import numpy as np
import pytest

from epp.latency.bias import EndpointBias


def test_mixed_hardware_is_told_apart() -> None:
    bias, rng = EndpointBias(), np.random.default_rng(0)
    for _ in range(200):
        bias.observe("fast", float(rng.normal(0.0, 0.15)))
        bias.observe("slow", log(1.8) + float(rng.normal(0.0, 0.15)))
    assert np.exp(bias.of(["fast", "slow"])) == pytest.approx([1.0, 1.8], rel=0.08)
    assert exp(bias.relative("slow") - bias.relative("fast")) == pytest.approx(1.8, rel=0.1)
    assert bias.drifts == 0


def test_one_sample_says_little() -> None:
    bias = EndpointBias()
    bias.observe("a", log(4.0))
    assert 0.0 < bias.of(["a"])[0] < 0.5


def test_a_server_that_becomes_twice_as_slow_is_followed_within_tens_of_requests() -> None:
    bias, rng = EndpointBias(), np.random.default_rng(1)
    for _ in range(2000):
        bias.observe("a", float(rng.normal(0.0, 0.2)))
    assert bias.drifts == 0
    for _ in range(40):
        bias.observe("a", log(2.0) + float(rng.normal(0.0, 0.2)))
    assert exp(bias.of(["a"])[0]) == pytest.approx(2.0, rel=0.2)
    for _ in range(60):
        bias.observe("a", float(rng.normal(0.0, 0.2)))
    assert exp(bias.of(["a"])[0]) == pytest.approx(1.0, rel=0.2)


def test_an_outlier_is_not_a_drift() -> None:
    bias, rng = EndpointBias(), np.random.default_rng(2)
    for i in range(1000):
        bias.observe("a", 50.0 if i % 100 == 99 else float(rng.normal(0.0, 0.2)))
    assert abs(bias.of(["a"])[0]) < 0.2


def test_a_new_endpoint_is_taken_for_like_the_others() -> None:
    bias = EndpointBias()
    for _ in range(100):
        bias.observe("a", 0.5)
    assert bias.of(["new"])[0] == pytest.approx(bias.of(["a"])[0])


def test_memory_is_bounded_and_the_gone_are_forgotten() -> None:
    bias = EndpointBias(max_endpoints=10)
    for i in range(100):
        bias.observe(f"pod-{i}", 1.0)
    assert set(bias.factors()) == {f"pod-{i}" for i in range(90, 100)}
    for i in range(100):
        bias.forget(f"pod-{i}")
        bias.forget(f"pod-{i}")
    assert bias.factors() == {}
    assert bias.mean == pytest.approx(0.0)


def test_another_model_starts_from_what_training_found() -> None:
    bias = EndpointBias()
    bias.observe("gone", 1.0)
    bias.observe("a", 1.0)
    bias.rebase({"a": (0.3, 30.0), "b": (-0.3, 30.0)})
    assert set(bias.factors()) == {"a", "b"}
    assert bias.of(["a", "b"]) == pytest.approx([0.27, -0.27], abs=0.01)


def test_factors_are_those_of_the_biases_whatever_came_between() -> None:
    rng = random.Random(5)
    bias, pool, part = EndpointBias(), ("a", "b", "c", "d"), ("d", "a", "never heard of")
    for _ in range(400):
        endpoint = rng.choice("abcdxy")
        match rng.randrange(12):
            case 0:
                bias.forget(endpoint)
            case 1:
                bias.rebase({name: (rng.uniform(-1, 1), 5.0) for name in rng.sample("abcd", 3)})
            case _:
                bias.observe(endpoint, rng.gauss(0.3, 0.5))
        for asked in (pool, pool, part)[: rng.randrange(4)]:
            assert bias.factors_of(asked) == pytest.approx(np.exp(bias.of(asked)))
