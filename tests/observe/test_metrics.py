"""What each family counts, and when."""

import random

import numpy as np
import pytest
from observed_world import SnapshotOf, World
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser

from epp.endings import EndCause
from epp.inference.request import Request, Usage
from epp.ledger import Ledger, Outcome
from epp.observe.cardinality import MAX_LABEL_SETS, MAX_LABEL_VALUES, RequestLabels
from epp.observe.metrics import Metrics
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.scheduling.cycle import Cycle, Observation
from epp.scheduling.decision import Decision, Denial
from epp.scheduling.plugin import IgnoredParameters, Plugin, Services
from epp.signals.errors import ScrapeErrorKind

REQUEST = Request(
    id="stream-1", model="llama", target_model="llama-v2", fairness_id="tenant", priority=-1, body_bytes=100
)
M = "model_name=llama,target_model_name=llama-v2"
MFP = "fairness_id=tenant,model_name=llama,priority=-1,target_model_name=llama-v2"
OUTCOME = Outcome(
    cause=EndCause.NATURAL,
    status=200,
    streamed=True,
    served_endpoint_id="ns/server-0",
    received_s=10.0,
    dispatched_s=10.002,
    first_token_s=10.5,
    ended_s=12.5,
    usage=Usage(prompt_tokens=50, completion_tokens=5, cached_tokens=0),
    response_bytes=1234,
    response_processing_s=0.125,
)


class AnyPlugin(Plugin):
    plugin_type = "any-scorer"


@pytest.fixture
def metrics(world: World) -> Metrics:
    return world.metrics()


def cycle_of(request: Request) -> Cycle:
    return Cycle(request, now_s=1.0, rng=random.Random(1))


def route(metrics: Metrics, snapshot: Snapshot, request: Request = REQUEST, row: int = 0) -> None:
    decision = Decision(snapshot, (snapshot.endpoints[row],), "default", {})
    metrics.request_routed(request, decision, cycle_of(request), 0.00015)


def run(metrics: Metrics, world: World, outcome: Outcome = OUTCOME, request: Request = REQUEST) -> dict[str, float]:
    """One request from its decision to its end; the page after it."""
    route(metrics, world.snapshot, request)
    metrics.request_ended(request, outcome)
    return world.page()


def test_a_streamed_request_counts_once_in_every_family_of_requests(metrics: Metrics, world: World) -> None:
    page = run(metrics, world)
    expected = {
        f"llm_d_epp_request_total{{{MFP}}}": 1,
        f"llm_d_epp_request_running{{{MFP}}}": 0,
        f"llm_d_epp_request_size_bytes_sum{{{MFP}}}": 100,
        f"llm_d_epp_response_size_bytes_sum{{{MFP}}}": 1234,
        f"llm_d_epp_request_input_tokens_sum{{{MFP}}}": 50,
        f"llm_d_epp_request_output_tokens_sum{{{MFP}}}": 5,
        f"llm_d_epp_request_output_tokens_count{{{MFP}}}": 1,
        f"llm_d_epp_request_cached_tokens_count{{{MFP}}}": 1,
        f"llm_d_epp_request_duration_seconds_sum{{{MFP}}}": 2.5,
        f"llm_d_epp_request_ntpot_seconds_sum{{{MFP}}}": 0.5,
        f"llm_d_epp_request_ttft_seconds_sum{{{MFP.replace('target', 'streaming=true,target')}}}": 0.5,
        f"llm_d_epp_request_streaming_tpot_seconds_sum{{{MFP}}}": 0.5,
        "llm_d_epp_request_end_total{cause=natural}": 1,
        "llm_d_epp_response_processing_duration_seconds_sum": 0.125,
        "llm_d_epp_model_rewrite_decisions_total{model_name=llama,model_rewrite_name=request-header,"
        "target_model=llama-v2}": 1,
        "llm_d_epp_scheduler_e2e_duration_seconds_count": 1,
        "llm_d_epp_scheduler_attempts_total{endpoint_name=server-0,namespace=ns,port=8000,status=success,"
        "target_model_name=llama-v2}": 1,
        # and under the older names, over all tenants and priorities
        "inference_objective_request_total{model_name=llama,priority=-1,target_model_name=llama-v2}": 1,
        f"inference_objective_request_duration_seconds_sum{{{M}}}": 2.5,
        f"inference_objective_request_duration_seconds_bucket{{le=3.0,{M}}}": 1,
        f"inference_objective_request_duration_seconds_bucket{{le=2.0,{M}}}": 0,
        f"inference_objective_response_sizes_count{{{M}}}": 1,
        "inference_objective_running_requests{model_name=llama}": 0,
        "inference_extension_scheduler_e2e_duration_seconds_count": 1,
        "inference_extension_scheduler_attempts_total{namespace=ns,pod_name=server-0,port=8000,status=success,"
        "target_model_name=llama-v2}": 1,
    }
    assert {name: page.get(name) for name in expected} == expected
    assert page["llm_d_epp_request_processing_duration_seconds_sum"] == pytest.approx(0.002)
    assert not [name for name in page if "request_error_total{" in name or name.endswith("_created")]


def test_gaps_between_chunks_are_counted_as_they_come(metrics: Metrics, world: World) -> None:
    metrics.requests.chunk_gap(REQUEST, 0.03)
    metrics.requests.chunk_gap(REQUEST, 0.05)
    page = world.page()
    assert page[f"llm_d_epp_request_streaming_itl_seconds_count{{{MFP}}}"] == 2
    assert (
        page[f"llm_d_epp_request_streaming_itl_seconds_bucket{{{MFP.replace('model_name', 'le=0.04,model_name', 1)}}}"]
        == 1
    )


def test_running_rises_with_the_decision_and_falls_with_the_end(metrics: Metrics, world: World) -> None:
    route(metrics, world.snapshot)
    route(metrics, world.snapshot, REQUEST._replace(fairness_id="another"))
    assert world.page()[f"llm_d_epp_request_running{{{MFP}}}"] == 1
    assert world.page()["inference_objective_running_requests{model_name=llama}"] == 2
    metrics.request_ended(REQUEST, OUTCOME._replace(cause=EndCause.LOST, status=None))
    assert world.page()[f"llm_d_epp_request_running{{{MFP}}}"] == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"status": 404}, "ModelServerError"),
        ({"status": 503}, "ModelServerError"),
        ({"status": None, "cause": EndCause.UPSTREAM_ERROR}, "ModelServerError"),
        ({"cause": EndCause.EVICTED}, "ResourceExhausted"),
        ({"cause": EndCause.CLIENT_GONE}, None),
        ({"cause": EndCause.LOST}, None),
        ({}, None),
    ],
)
def test_an_error_is_counted_by_the_status_of_the_answer(
    metrics: Metrics, world: World, change: dict[str, object], code: str | None
) -> None:
    page = run(metrics, world, OUTCOME._replace(**change))
    errors = {name: value for name, value in page.items() if name.startswith("llm_d_epp_request_error_total")}
    assert errors == ({f"llm_d_epp_request_error_total{{error_code={code},{MFP}}}": 1} if code else {})


def observed(page: dict[str, float], family: str) -> float:
    return sum(value for name, value in page.items() if name.startswith(f"llm_d_epp_{family}_count"))


@pytest.mark.parametrize(
    ("change", "ttft", "tpot", "ntpot"),
    [
        ({"streamed": False}, 1, 0, 1),
        ({"status": 400, "streamed": False, "usage": Usage()}, 0, 0, 0),  # asked for a stream, got an error page
        ({"usage": Usage(completion_tokens=0), "first_token_s": None}, 0, 0, 0),
        ({"usage": Usage(completion_tokens=1)}, 1, 0, 1),
        ({"usage": Usage(completion_tokens=2)}, 1, 1, 1),
        ({"usage": Usage()}, 1, 0, 0),
        ({"cause": EndCause.CLIENT_GONE}, 0, 0, 0),
        ({"ended_s": 10.0, "first_token_s": 10.0}, 0, 0, 0),  # a clock that did not move
    ],
)
def test_token_latencies_come_only_from_answers_that_have_them(
    metrics: Metrics, world: World, change: dict[str, object], ttft: int, tpot: int, ntpot: int
) -> None:
    page = run(metrics, world, OUTCOME._replace(**change))
    assert observed(page, "request_ttft_seconds") == ttft
    assert observed(page, "request_streaming_tpot_seconds") == tpot
    assert observed(page, "request_ntpot_seconds") == ntpot


def test_tokens_of_a_client_that_left_are_counted_but_no_duration(metrics: Metrics, world: World) -> None:
    page = run(metrics, world, OUTCOME._replace(cause=EndCause.CLIENT_GONE))
    assert observed(page, "request_output_tokens") == 1
    assert observed(page, "request_duration_seconds") == 0
    assert page["llm_d_epp_request_end_total{cause=client_gone}"] == 1


def test_a_refusal_is_an_error_and_no_request(metrics: Metrics, world: World) -> None:
    metrics.request_refused(REQUEST, Denial.no_endpoints("none"), cycle_of(REQUEST), 0.001)
    metrics.request_refused(None, Denial.too_large("large"), None, 0.001)
    page = world.page()
    nobody = "fairness_id=default-flow,model_name=,priority=0,target_model_name="
    assert page[f"llm_d_epp_request_error_total{{error_code=ServiceUnavailable,{MFP}}}"] == 1
    assert page[f"llm_d_epp_request_error_total{{error_code=PayloadTooLarge,{nobody}}}"] == 1
    assert page["llm_d_epp_request_end_total{cause=rejected}"] == 2
    assert page["llm_d_epp_request_processing_duration_seconds_count"] == 2
    failures = "endpoint_name=,namespace=,port=,status=failure,target_model_name=llama-v2"
    assert page[f"llm_d_epp_scheduler_attempts_total{{{failures}}}"] == 1
    assert not any(name.startswith("llm_d_epp_request_total{") for name in page)


LOST = OUTCOME._replace(cause=EndCause.LOST, status=None, usage=Usage())


def test_models_and_tenants_without_end_fold_into_other(metrics: Metrics, world: World) -> None:
    requests = [Request(id=f"{i}", model=f"m{i}", target_model=f"m{i}", fairness_id=f"t{i}") for i in range(1500)]
    for request in requests:
        route(metrics, world.snapshot, request)
    for request in requests:
        metrics.request_ended(request, LOST)
    page = world.page("llm_d_epp_request_total", "llm_d_epp_request_running")
    series = [name for name in page if name.startswith("llm_d_epp_request_total{")]
    assert len(series) == 2 * MAX_LABEL_SETS + 1
    others = "fairness_id=other,model_name=other,priority=0,target_model_name=other"
    assert page[f"llm_d_epp_request_total{{{others}}}"] == 1500 - 2 * MAX_LABEL_SETS
    running = [value for name, value in page.items() if name.startswith("llm_d_epp_request_running{")]
    assert running == [0] * len(series)


def test_when_tenants_abound_models_are_still_told_apart(metrics: Metrics, world: World) -> None:
    for i in range(MAX_LABEL_SETS + 10):
        route(metrics, world.snapshot, REQUEST._replace(fairness_id=f"tenant-{i}"))
    folded = MFP.replace("fairness_id=tenant", "fairness_id=other")
    assert world.page("llm_d_epp_request_total")[f"llm_d_epp_request_total{{{folded}}}"] == 10


def test_models_beyond_the_bound_are_folded_and_the_first_are_not() -> None:
    labels = RequestLabels()
    for i in range(MAX_LABEL_VALUES + 1):
        labels.model(f"m{i}")
    assert labels.model(f"m{MAX_LABEL_VALUES}") == "other"
    assert labels.model("m0") == "m0"
    assert labels.model(None) == ""


def test_a_label_as_long_as_a_book_is_folded(metrics: Metrics, world: World) -> None:
    route(metrics, world.snapshot, REQUEST._replace(model="x" * 10_000))
    assert not [name for name in world.page() if len(name) > 500]


# --- the pool -------------------------------------------------------------------------------------------------------


def test_pool_averages_keep_their_fractions_and_skip_what_is_stale_or_unknown(
    metrics: Metrics, world: World, snapshot_of: SnapshotOf
) -> None:
    world.snapshot = snapshot_of(
        EndpointSignals(waiting_requests=1, running_requests=2, kv_cache_usage_ratio=0.5, scraped_at_s=99.5),
        EndpointSignals(waiting_requests=0, running_requests=4, scraped_at_s=99.0),
        EndpointSignals(waiting_requests=900, running_requests=900, kv_cache_usage_ratio=1.0, scraped_at_s=90.0),
        EndpointSignals(),
    )
    metrics.refresh_pool(world.snapshot, world.now_s, staleness_s=2.0)
    page = world.page()
    assert page["llm_d_epp_average_queue_size{name=pool}"] == 0.5
    assert page["inference_pool_average_queue_size{name=pool}"] == 0.5
    assert page["llm_d_epp_average_running_requests{name=pool}"] == 3
    assert page["llm_d_epp_average_kv_cache_utilization{name=pool}"] == 0.5
    assert page["llm_d_epp_std_dev_queue_size{name=pool}"] == 0.71
    assert page["llm_d_epp_std_dev_kv_cache_utilization{name=pool}"] == 0
    assert page["llm_d_epp_ready_endpoints{name=pool}"] == page["inference_pool_ready_pods{name=pool}"] == 2
    assert page["llm_d_epp_stale_endpoints{name=pool}"] == 2


@pytest.mark.parametrize("count", [0, 3])
def test_a_pool_without_fresh_signals_has_no_averages_rather_than_idle_ones(
    metrics: Metrics, world: World, snapshot_of: SnapshotOf, count: int
) -> None:
    fresh = EndpointSignals(waiting_requests=7, scraped_at_s=100.0)
    metrics.refresh_pool(snapshot_of(fresh), 100.0, 2.0)
    assert world.page()["llm_d_epp_average_queue_size{name=pool}"] == 7
    metrics.refresh_pool(snapshot_of(*[fresh] * count), 200.0, 2.0)
    page = world.page()
    assert not [name for name in page if "average_" in name or "std_dev_" in name]
    assert page["llm_d_epp_ready_endpoints{name=pool}"] == 0
    assert not any(np.isnan(value) for value in page.values())


def test_queue_size_of_each_endpoint_is_read_at_the_scrape(
    metrics: Metrics, world: World, snapshot_of: SnapshotOf
) -> None:
    world.snapshot = snapshot_of(EndpointSignals(waiting_requests=3, scraped_at_s=1.0), EndpointSignals())
    page = world.page()
    assert page["llm_d_epp_per_endpoint_queue_size{model_server_endpoint=server-0,name=pool}"] == 3
    assert page["inference_pool_per_pod_queue_size{model_server_pod=server-0,name=pool}"] == 3
    assert not [name for name in page if "server-1" in name and "queue" in name]  # unknown is not idle


def test_what_is_in_flight_comes_from_the_ledger(metrics: Metrics, world: World) -> None:
    world.ledger.reserve("stream-1", "ns/server-1", prefill_tokens=100, output_tokens=20)
    page = world.page()
    assert page["llm_d_epp_inflight_requests{endpoint_name=server-1,namespace=ns}"] == 1
    assert page["llm_d_epp_inflight_tokens{endpoint_name=server-1,namespace=ns}"] == 120
    assert page["llm_d_epp_inflight_requests{endpoint_name=server-0,namespace=ns}"] == 0


def test_series_of_endpoints_that_left_are_dropped(metrics: Metrics, world: World, snapshot_of: SnapshotOf) -> None:
    world.snapshot = snapshot_of(EndpointSignals(), EndpointSignals(), version=1)
    for row in (0, 1):
        route(metrics, world.snapshot, row=row)
    metrics.request_refused(REQUEST, Denial.no_endpoints("none"), cycle_of(REQUEST), 0.001)
    metrics.refresh_pool(snapshot_of(EndpointSignals(), version=2), 1.0, 2.0)
    attempts = [name for name in world.page() if name.startswith("llm_d_epp_scheduler_attempts_total")]
    assert len(attempts) == 2
    assert not any("server-1" in name for name in attempts)


# --- plugins, streams, signals --------------------------------------------------------------------------------------


def plugin() -> Plugin:
    return AnyPlugin("my-scorer", IgnoredParameters(), Services(ledger=Ledger()))


def test_plugins_are_timed_and_their_failures_counted_and_logged_once(
    metrics: Metrics, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.plugins.durations("Scorer", plugin())(0.0003)
    for _ in range(3):
        metrics.plugins.failure("Scorer", plugin(), ValueError("secret prompt"))
    page = world.page()
    labels = "extension_point=Scorer,plugin_name=my-scorer,plugin_type=any-scorer"
    assert page[f"llm_d_epp_plugin_duration_seconds_count{{{labels}}}"] == 1
    assert page[f"inference_extension_plugin_duration_seconds_count{{{labels}}}"] == 1
    assert page[f"llm_d_epp_plugin_failures_total{{{labels}}}"] == 3
    assert len(caplog.records) == 1
    assert "secret" not in caplog.records[0].getMessage()
    world.now_s += 61
    metrics.plugins.failure("Scorer", plugin(), ValueError("secret prompt"))
    assert len(caplog.records) == 2


def test_what_plugins_observe_is_counted_once(metrics: Metrics, world: World, caplog: pytest.LogCaptureFixture) -> None:
    cycle = cycle_of(REQUEST)
    for family, value in (
        ("prefix_indexer_hit_ratio", 0.75),
        ("prefix_indexer_hit_bytes", 4096.0),
        ("prefix_indexer_size", 12.0),
        ("no_such_family", 1.0),
    ):
        cycle.observations.append(Observation(family, value, "index", "approx"))
    decision = Decision(world.snapshot, world.snapshot.endpoints, "default", {})
    metrics.request_routed(REQUEST, decision, cycle, 0.001)
    assert cycle.observations == []
    page = world.page()
    labels = "plugin_name=index,plugin_type=approx"
    assert page[f"llm_d_epp_prefix_indexer_hit_ratio_sum{{{labels}}}"] == 0.75
    assert page[f"llm_d_epp_prefix_indexer_hit_bytes_sum{{{labels}}}"] == 4096
    assert page[f"llm_d_epp_prefix_indexer_size{{{labels}}}"] == 12
    assert page["inference_extension_prefix_indexer_size"] == 12
    assert "no_such_family" in caplog.text


def test_streams_are_counted_when_asked_for(metrics: Metrics, world: World) -> None:
    assert metrics.streams is not None
    metrics.streams.stream_opened()
    metrics.streams.stream_opened()
    metrics.streams.stream_closed("OK", 0.5)
    page = world.page()
    assert page["llm_d_epp_extproc_streams_inflight"] == 1
    assert page["llm_d_epp_extproc_streams_total{code=OK}"] == 1
    assert page["llm_d_epp_extproc_stream_duration_seconds_sum"] == 0.5


def test_failed_reads_of_signals_are_counted(metrics: Metrics, world: World) -> None:
    for kind in (ScrapeErrorKind.TIMEOUT, ScrapeErrorKind.NOT_METRICS):
        metrics.signals.scrape_failed(kind, "metrics-data-source", "core-metrics-extractor")
    page = world.page()
    assert page["llm_d_epp_datalayer_poll_errors_total{source_type=metrics-data-source}"] == 1
    extract = "extractor_type=core-metrics-extractor,source_type=metrics-data-source"
    assert page[f"llm_d_inference_scheduler_datalayer_extract_errors_total{{{extract}}}"] == 1


def test_older_names_can_be_left_out(world: World) -> None:
    page = run(world.metrics(legacy=False, stream_metrics=False), world)
    assert not [name for name in page if not name.startswith(("llm_d_epp_", "process_"))]
    assert not [name for name in page if "extproc" in name]


def test_the_page_is_valid_openmetrics_too(metrics: Metrics, world: World) -> None:
    run(metrics, world, OUTCOME._replace(status=500))
    metrics.plugins.durations("Scorer", plugin())(0.0003)
    metrics.refresh_pool(world.snapshot, world.now_s, 2.0)
    names = {family.name for family in openmetrics_parser.text_string_to_metric_families(openmetrics_page(world))}
    assert {"llm_d_epp_request", "llm_d_epp_plugin_duration_seconds", "inference_objective_request_error"} <= names


def openmetrics_page(world: World) -> str:
    return openmetrics.generate_latest(world.registry).decode()


def test_help_texts_tell_stability_and_successors(metrics: Metrics, world: World) -> None:
    run(metrics, world)
    lines = generate_latest(world.registry).decode().splitlines()
    helps = {line.split(" ")[2]: line for line in lines if line.startswith("# HELP") and "process_" not in line}
    current = [text for name, text in helps.items() if name.startswith("llm_d_epp_")]
    assert all("[ALPHA] " in text for text in current)
    assert "[Deprecated: Use llm_d_epp_request_total] " in helps["inference_objective_request_total"]
    assert "[Deprecated: Use llm_d_epp_ready_endpoints] " in helps["inference_pool_ready_pods"]
