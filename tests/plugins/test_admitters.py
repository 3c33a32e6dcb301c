"""Sheddable requests are refused with 429 and a reason, and only when that is known to be right."""

import numpy as np
import pytest
from latency_fakes import NONE, cycle_with, predicted
from plugin_fakes import make, pool, signals
from pydantic import ValidationError

SLO = {"x-slo-ttft-ms": "500"}
LLM_D = {"compatibility": "llm-d"}


def busy(size=2, **known):
    return pool(*(signals(**({"running_requests": 5.0, "kv_cache_usage_ratio": 0.5} | known)) for _ in range(size)))


def admit(prediction, *, priority=-1, headers=SLO, candidates=None, parameters=None):
    cycle = cycle_with(prediction, headers=headers, priority=priority)
    return make("latency-slo-admitter", parameters).admit(cycle, candidates or busy())


MISSED = predicted([900, 700], slo=(500, None))


def test_a_sheddable_request_that_nobody_can_serve_in_time_is_refused():
    denial = admit(MISSED)
    assert (denial.status, denial.reason, denial.retry_after_s) == (429, "rejected-saturated", 1)


@pytest.mark.parametrize("priority", [0, 1])
def test_others_are_not(priority):
    assert admit(MISSED, priority=priority) is None


@pytest.mark.parametrize("headers", [{}, {"x-slo-ttft-ms": "soon"}, {"x-slo-ttft-ms": "-1"}])
def test_without_a_target_nobody_is_refused(headers):
    assert admit(MISSED, headers=headers) is None


def test_one_server_that_can_is_enough():
    assert admit(predicted([900, 400], slo=(500, None))) is None


def test_a_target_that_is_met_is_not_refused_for_one_that_was_never_stated():
    assert admit(predicted([100, 100], [99, 99], slo=(500, None))) is None
    assert admit(predicted([9000, 9000], [9, 9], slo=(None, 50)), headers={"x-slo-tpot-ms": "50"}) is None


@pytest.mark.parametrize("prediction", [None, predicted([NONE, NONE], slo=(500, None))])
def test_without_predictions_nobody_is_refused(prediction):
    assert admit(prediction) is None


def test_an_idle_server_may_try():
    idle = predicted([900, 700], slo=(500, None), requests=[1, 0])
    assert admit(idle, candidates=busy(running_requests=0.0)) is None
    assert admit(idle, candidates=busy(running_requests=None)) is None
    assert admit(idle, candidates=busy(running_requests=2.0)) is not None
    assert admit(MISSED, candidates=busy(running_requests=0.0)) is not None


def test_a_cold_server_may_try():
    assert admit(MISSED, candidates=busy(kv_cache_usage_ratio=0.019)) is None
    assert admit(MISSED, candidates=busy(kv_cache_usage_ratio=0.02)) is not None
    assert admit(MISSED, candidates=busy(kv_cache_usage_ratio=0.0, scraped_at_s=1.0)) is not None


def test_idle_is_the_servers_word_like_llm_d():
    assert admit(MISSED, candidates=busy(running_requests=0.0), parameters=LLM_D) is None
    assert admit(MISSED, candidates=busy(running_requests=0.0, scraped_at_s=1.0), parameters=LLM_D) is None
    idle = predicted([900, 700], slo=(500, None), requests=[0, 0])
    assert admit(idle, candidates=busy(running_requests=None), parameters=LLM_D) is not None


def test_a_refusal_is_counted():
    cycle = cycle_with(MISSED, headers=SLO, priority=-1)
    make("latency-slo-admitter", name="mine").admit(cycle, busy())
    assert [(o.family, o.plugin_name) for o in cycle.observations] == [("admission_denied", "mine")]


# --- probabilistic-admitter -----------------------------------------------------------------------------------------


def refused_share(candidates, parameters=None, *, priority=-1, seeds=1000):
    plugin = make("probabilistic-admitter", parameters)
    denials = [plugin.admit(cycle_with(None, priority=priority, seed=seed), candidates) for seed in range(seeds)]
    assert all(d is None or (d.status, d.retry_after_s) == (429, 1) for d in denials)
    return np.mean([d is not None for d in denials])


@pytest.mark.parametrize(
    ("waiting", "kv", "expected"),
    [(1.0, 0.0, 0.096), (0.0, 0.16, 0.096), (1.25, 0.1, 0.293), (1.6, 0.0, 1.0), (9.0, 0.9, 1.0), (0.0, 0.0, 0.0)],
)
def test_refusals_grow_with_saturation(waiting, kv, expected):
    candidates = pool(signals(waiting_requests=waiting, kv_cache_usage_ratio=kv))
    assert refused_share(candidates) == pytest.approx(expected, abs=0.04)


def test_saturation_is_the_mean_over_servers():
    candidates = pool(
        signals(waiting_requests=2.0, kv_cache_usage_ratio=0.0), signals(waiting_requests=0.0, kv_cache_usage_ratio=0.0)
    )
    assert refused_share(candidates) == pytest.approx(0.096, abs=0.04)


def test_priority_0_is_never_refused():
    assert refused_share(pool(signals(waiting_requests=99.0)), priority=0, seeds=20) == 0


def test_a_server_of_which_nothing_is_known_is_not_full():
    idle = signals(waiting_requests=0.0, kv_cache_usage_ratio=0.0)
    assert refused_share(pool(idle, signals()), seeds=50) == 0
    assert refused_share(pool(signals(), signals()), seeds=50) == 0
    assert refused_share(pool(idle, signals()), LLM_D, seeds=50) == 1
    assert refused_share(pool(signals(kv_cache_usage_ratio=0.01)), seeds=50) == 0


def test_parameters_of_the_probabilistic_admitter():
    candidates = pool(signals(waiting_requests=5.0, kv_cache_usage_ratio=0.0))
    parameters = {"queueDepthThreshold": 10, "kvCacheUtilThreshold": 0.9, "power": 1, "k": 1}
    assert refused_share(candidates, parameters) == pytest.approx(0.5, abs=0.05)
    for bad in ({"queueDepthThreshold": 0}, {"kvCacheUtilThreshold": 1.5}, {"power": 0}, {"k": -1}):
        with pytest.raises(ValidationError):
            make("probabilistic-admitter", bad)
