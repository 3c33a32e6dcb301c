"""Pages of metrics: the same bytes as the library's, of one moment, in pieces."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed_world import endpoints
from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from epp.inference.request import Request
from epp.ledger import Ledger
from epp.observe.families import Families
from epp.observe.legacy import LegacyCollector, Twin
from epp.observe.metrics import Metrics
from epp.observe.page import PIECE_BYTES, format_for, pieces
from epp.observe.readings import ReadMetric
from epp.pool.snapshot import EndpointSignals, Snapshot

FORMATS = {
    "plain": "",
    "plain 1.0": "text/plain;version=1.0.0",
    "plain 1.0, UTF-8": "text/plain;version=1.0.0;escaping=allow-utf-8",
    "OpenMetrics": "application/openmetrics-text;version=1.0.0",
    "OpenMetrics, dots": "application/openmetrics-text;version=1.0.0; escaping=dots",
    "plain 1.0, values": "text/plain;version=1.0.0;escaping = values;q=0.5",
    "OpenMetrics, without a version": "application/openmetrics-text",
}
NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 999_999.0, 1e6, 12_345_678.9, 1e21, -1e7, math.inf, -math.inf, math.nan]),
    st.floats(),
    st.integers(0, 10**9).map(float),
)
LABEL_VALUES = st.text(st.sampled_from('ab\\"\n{},= é\u2028\x00'), max_size=4)


class Fixed(Collector):
    """Plain metrics of the library's, whose samples are not ours."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def in_full(metric: Metric) -> Metric:
    plain = Metric(metric.name, metric.documentation, metric.type)
    plain.samples = list(metric.samples)
    return plain


def assert_like_the_library(metrics: list[Metric]) -> None:
    for accept in FORMATS.values():
        encode, _ = format_for(accept)
        assert b"".join(pieces(metrics, encode)).splitlines() == encode(Fixed(map(in_full, metrics))).splitlines()


@given(
    st.lists(st.sampled_from(["a", "l", "lf", "model", "z_9"]), unique=True, max_size=3).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.lists(st.tuples(st.tuples(*[LABEL_VALUES] * len(names)), st.lists(NUMBERS, max_size=4)), max_size=4),
        )
    )
)
def test_lines_are_the_librarys(drawn: tuple[list[str], list[tuple[tuple[str, ...], list[float]]]]) -> None:
    names, children = drawn
    registry = CollectorRegistry()
    families = Families(registry)
    counter = families.counter("things", 'A \\ and\na "quote".', names)
    gauge = families.gauge("level", "How high.", names)
    histogram = families.histogram("seconds", "How long.", (0.001, 1.0, 2.5e6), names)
    for labels, numbers in children:
        for number in numbers:
            counter[labels].value += number
            gauge[labels].set(number)
            histogram[labels].observe(number)
    assert_like_the_library(list(registry.collect()))


def busy() -> tuple[CollectorRegistry, Metrics]:
    """Every kind of collector that a picker has, and one of the library's own."""
    registry = CollectorRegistry()
    members = endpoints(3)
    signals = {members[0].id: EndpointSignals(1.0, 2.0, 0.5, scraped_at_s=0.5), members[2].id: EndpointSignals(7.0)}
    snapshot = Snapshot.build(members, signals)
    metrics = Metrics(
        registry, pool_name="pool", snapshot=lambda: snapshot, ledger=Ledger(), clock=lambda: 1.0, stream_metrics=True
    )
    metrics.refresh_pool(snapshot, 1.0, 2.0)
    Counter("foreign", "Not ours.", ["kind"], registry=registry).labels("a").inc()
    for number in range(40):
        request = Request(id=f"{number}", model=f"m{number % 7}", target_model=f"t{number % 3}", fairness_id="f\n")
        metrics.requests.routed(request)
    return registry, metrics


def test_a_pickers_page_is_the_librarys() -> None:
    registry, _ = busy()
    metrics = list(registry.collect())
    assert sum(isinstance(metric, ReadMetric) for metric in metrics) > 40
    assert_like_the_library(metrics)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["llm_d_epp_request_total"], {"llm_d_epp_request_total"}),
        (["llm_d_epp_request_duration_seconds_bucket"], {"llm_d_epp_request_duration_seconds_bucket"}),
        (
            ["llm_d_epp_request_duration_seconds_sum", "llm_d_epp_request_running", "foreign_total"],
            {"llm_d_epp_request_duration_seconds_sum", "llm_d_epp_request_running", "foreign_total"},
        ),
        (
            ["inference_objective_request_sizes_count", "inference_pool_per_pod_queue_size"],
            {"inference_objective_request_sizes_count", "inference_pool_per_pod_queue_size"},
        ),
        (["llm_d_epp_request", "llm_d_epp_request_duration_seconds", "nothing"], set()),
    ],
    ids=["counter", "buckets", "several", "older names", "no sample is called so"],
)
def test_what_is_asked_for_by_name_is_all_there_is(names: list[str], kinds: set[str]) -> None:
    registry, _ = busy()
    asked = list(registry.restricted_registry(names).collect())
    assert {sample.name for metric in asked for sample in metric.samples} == kinds
    assert_like_the_library(asked)


def test_an_older_name_sums_over_the_labels_that_it_has_not() -> None:
    registry = CollectorRegistry()
    families = Families(registry)
    counter = families.counter("things", "Things.", ("model", "tenant", "zone"))
    histogram = families.histogram("seconds", "Seconds.", (1.0, 2.0), ("model", "tenant"))
    for model, tenant, zone, value in (("a", "x", "1", 0.5), ("b", "x", "1", 1.5), ("a", "y", "2", 5.0)):
        counter[model, tenant, zone].value += value
        histogram[model, tenant].observe(value)
    twins = [
        Twin(counter, "old_things", {"zone": "area", "model": "name"}),
        Twin(histogram, "old_seconds", {"model": "name"}),
    ]
    things, seconds = LegacyCollector(twins).collect()
    assert things.documentation == "[Deprecated: Use llm_d_epp_things_total] Things."
    assert {(s.name, s.labels["area"], s.labels["name"]): s.value for s in things.samples} == {
        ("old_things_total", "1", "a"): 0.5,
        ("old_things_total", "1", "b"): 1.5,
        ("old_things_total", "2", "a"): 5.0,
    }
    assert [s for s in seconds.samples if s.labels["name"] == "a"] == [
        Sample("old_seconds_bucket", {"name": "a", "le": "1.0"}, 1),
        Sample("old_seconds_bucket", {"name": "a", "le": "2.0"}, 1),
        Sample("old_seconds_bucket", {"name": "a", "le": "+Inf"}, 2),
        Sample("old_seconds_count", {"name": "a"}, 2),
        Sample("old_seconds_sum", {"name": "a"}, 5.5),
    ]
    assert_like_the_library([things, seconds])


def test_a_page_is_of_one_moment_however_slowly_it_is_read() -> None:
    registry, metrics = busy()
    encode, _ = format_for("")
    before = encode(Fixed(map(in_full, registry.collect())))
    collected = list(registry.collect())
    for number in range(500):
        request = Request(id="x", model=f"m{number % 9}", target_model="t", fairness_id="f\n")
        metrics.requests.routed(request)
    page = b"".join(pieces(collected, encode))
    ours = [line for line in page.splitlines() if not line.startswith(b"process_")]
    assert ours == [line for line in before.splitlines() if not line.startswith(b"process_")]
    assert encode(registry) != before


def test_no_piece_is_much_longer_than_another() -> None:
    registry = CollectorRegistry()
    histogram = Families(registry).histogram("seconds", "Seconds.", [float(i) for i in range(20)], ("model",))
    for number in range(1000):
        histogram[f"model-{number}",].observe(1.0)
    made = list(pieces(registry.collect(), format_for("")[0]))
    assert len(made) > 10
    assert max(map(len, made)) < PIECE_BYTES + 2_000  # and the lines of one child
