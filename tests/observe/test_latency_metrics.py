"""Promises and what came of them, as a scraper sees them."""

import random

import numpy as np
import pytest
from observed_world import World

from epp.inference.request import Request
from epp.latency.features import FEATURES
from epp.latency.predictor import Predictor
from epp.latency.types import Promise, Sample, Source, Target, TargetPromise
from epp.observe.metrics import Metrics
from epp.scheduling.cycle import Cycle, Observation

REQUEST = Request(id="1", model="llama", target_model="llama", objective="chat")
PL = "model_name=llama,plugin_name=latency,plugin_type=predicted-latency-producer,target_model_name=llama"
M = "model_name=llama,target_model_name=llama"


def observed(metrics: Metrics, *seen: tuple[str, float, dict[str, str]], request: Request = REQUEST) -> None:
    cycle = Cycle(request, now_s=1.0, rng=random.Random(1))
    cycle.observations = [
        Observation(family, value, "latency", "predicted-latency-producer", tuple(labels.items()))
        for family, value, labels in seen
    ]
    metrics.plugins_observed(cycle)
    assert cycle.observations == []


@pytest.fixture
def metrics(world: World) -> Metrics:
    return world.metrics()


def test_a_promise_and_what_came_of_it_are_paired_under_both_names(metrics: Metrics, world: World) -> None:
    observed(
        metrics,
        ("request_ttft_prediction_duration_seconds", 0.0002, {}),
        ("request_predicted_ttft_seconds", 0.5, {}),
        ("request_served_ttft_seconds", 0.25, {}),
        ("request_predicted_tpot_seconds", 0.01, {}),
        ("request_served_tpot_seconds", 0.02, {}),
        ("request_served_e2e_seconds", 2.0, {}),
    )
    page = world.page()
    expected = {
        f"llm_d_epp_request_predicted_ttft_seconds_sum{{{PL}}}": 0.5,
        f"llm_d_epp_request_served_ttft_seconds_sum{{{PL}}}": 0.25,
        f"llm_d_epp_request_predicted_tpot_seconds_sum{{{PL}}}": 0.01,
        f"llm_d_epp_request_served_tpot_seconds_count{{{PL}}}": 1,
        f"llm_d_epp_request_served_e2e_seconds_sum{{{PL}}}": 2,
        f"llm_d_epp_request_ttft_prediction_duration_seconds_count{{{PL}}}": 1,
        f"llm_d_epp_inference_request_metric{{{PL},type=predicted_ttft}}": 0.5,
        f"inference_objective_request_ttft_seconds_sum{{{M}}}": 0.25,
        f"inference_objective_request_predicted_ttft_seconds_sum{{{M}}}": 0.5,
        f"inference_objective_request_tpot_seconds_count{{{M}}}": 1,
        f"inference_objective_request_ttft_prediction_duration_seconds_count{{{M}}}": 1,
        f"inference_objective_inference_request_metric{{{M},type=ttft}}": 0.25,
    }
    assert {name: page.get(name) for name in expected} == expected


def test_attainment_is_by_configured_objective_only(world: World) -> None:
    metrics = Metrics(
        world.registry,
        pool_name="pool",
        snapshot=lambda: world.snapshot,
        ledger=world.ledger,
        clock=lambda: 0.0,
        objectives=("chat",),
    )
    ttft = {"type": "ttft"}
    observed(metrics, ("request_slo_checked", 1, ttft), ("request_slo_violation", 1, ttft))
    observed(metrics, ("request_slo_checked", 1, ttft))
    invented = Request(id="2", model="llama", target_model="llama", objective="a client's own word")
    observed(metrics, ("request_slo_checked", 1, ttft), request=invented)
    page = world.page()
    assert page["llm_d_epp_slo_requests_total{objective=chat,type=ttft}"] == 2
    assert page["llm_d_epp_slo_missed_total{objective=chat,type=ttft}"] == 1
    assert page["llm_d_epp_slo_requests_total{objective=,type=ttft}"] == 1
    assert page[f"llm_d_epp_request_slo_violation_total{{{PL},type=ttft}}"] == 1
    assert page[f"inference_objective_request_slo_violation_total{{{M},type=ttft}}"] == 1
    assert page[f"llm_d_epp_inference_request_metric{{{PL},type=ttft_slo_violation}}"] == 0
    assert not [name for name in page if "own word" in name]


def test_what_went_without_a_prediction_says_why(metrics: Metrics, world: World) -> None:
    observed(
        metrics,
        ("prediction_fallback", 1, {"reason": "not_ready"}),
        ("prediction_samples_dropped", 1, {"reason": "aborted"}),
        ("slo_header_invalid", 1, {"header": "x-slo-ttft-ms"}),
        ("slow_start_requests", 1, {}),
        ("admission_denied", 1, {}),
    )
    page = world.page()
    assert page["llm_d_epp_prediction_fallback_total{reason=not_ready}"] == 1
    assert page["llm_d_epp_prediction_samples_dropped_total{reason=aborted}"] == 1
    assert page["llm_d_epp_slo_header_invalid_total{header=x-slo-ttft-ms}"] == 1
    assert page["llm_d_epp_slow_start_requests_total"] == 1
    assert page["llm_d_epp_admission_denied_total{plugin_name=latency,plugin_type=predicted-latency-producer}"] == 1


def test_served_errors_and_coverage_are_shown_and_an_untrained_predictor_shows_none(
    metrics: Metrics, world: World
) -> None:
    predictor = Predictor()
    metrics.latency.predictor.refresh(predictor, 10.0)
    page = world.page()
    assert page["llm_d_epp_predictor_ready{target=ttft}"] == 0
    assert page["llm_d_epp_predictor_model_version"] == 0
    assert "llm_d_epp_predictor_error_seconds{target=ttft}" not in page

    promised = TargetPromise(mean_ms=100.0, bound_ms=150.0, base_ms=100.0, spread=0.3, source=Source.PRIOR)
    promise = Promise(np.ones(len(FEATURES), np.float32), {Target.TTFT: promised}, quantile=0.9, model_version=0)
    for actual_ms in (80.0, 120.0, 160.0, 120.0):
        predictor.observe(Sample("ns/server-0", promise, 11.0, {Target.TTFT: actual_ms}))
    metrics.latency.predictor.refresh(predictor, 12.0)
    page = world.page()
    assert page["llm_d_epp_predictor_error_seconds{target=ttft}"] == pytest.approx(0.030)
    assert page["llm_d_epp_predictor_coverage_ratio{quantile=0.9,target=ttft}"] == pytest.approx(0.75)
    assert page["llm_d_epp_predictor_pinball_loss_seconds{quantile=0.9,target=ttft}"] > 0
