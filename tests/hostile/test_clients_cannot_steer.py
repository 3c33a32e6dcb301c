"""Nothing that a client sends chooses an endpoint, leaves the pool, jumps a queue, or takes memory for good."""

import base64
import tracemalloc

import pytest
from envoy_messages import DESTINATION, response_headers
from hypothesis import given, settings
from hypothesis import strategies as st
from picker_in_memory import ADDRESSES, THREE_ADDRESSES, World
from predicting_picker import predicting_world
from prometheus_client import generate_latest

from epp.director import Arrival, DirectorOptions
from epp.endings import EndCause
from epp.inference.request import Request, Usage
from epp.observe.cardinality import MAX_LABEL_SETS
from epp.plugins.session_affinity_scorer import encode_token
from epp.pool.errors import DiscoveryError
from epp.pool.file_format import parse_endpoints_file
from epp.pool.snapshot import EndpointSignals
from epp.pool.static import parse_endpoints
from epp.signals.settings import ScrapeSettings
from epp.wire.names import STRIPPED_FROM_CLIENTS

SESSIONS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: session-affinity-scorer
  parameters: {strategy: %s}
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
"""
OUTSIDE = ("10.0.0.9:8000", "169.254.169.254:80", "10.0.0.1:22", "localhost:8000", "[::1]:8000", "evil.example:443")

PLAIN = World(THREE_ADDRESSES, director=DirectorOptions(objectives={"batch": -1}))
BY_TOKEN = World(SESSIONS % "encoded_endpoint_header")
BY_ID = World(SESSIONS % "session_id")
PREDICTING = predicting_world(director=DirectorOptions(objectives={"batch": -1}))
WORLDS = ["plain", "session token", "session id", "predicted latency"]

VALUES = (
    st.sampled_from([*OUTSIDE, *ADDRESSES, "", "NaN", "-1", "9300000000000000", "1e999", "batch"])
    | st.text(max_size=30)
    | st.sampled_from([encode_token("default/evil-rank-0"), encode_token("10.0.0.9:8000"), "x" * 50_000])
    | st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode())
)
NAMES = st.sampled_from([*STRIPPED_FROM_CLIENTS, "x-session-token", "x-session-id", "x-original-path", "prefer-not"])


def destinations(answer) -> list[str]:
    lb = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    return lb.fields[DESTINATION].string_value.split(",")


@pytest.mark.parametrize("world", [PLAIN, BY_TOKEN, BY_ID, PREDICTING], ids=WORLDS)
@given(headers=st.dictionaries(NAMES, VALUES, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_headers_say_the_choice_is_within_the_pool_and_they_go_no_further(world, headers):
    sent = {name: value.encode("utf-8", "replace").decode() for name, value in headers.items()}
    talk = world.post({"model": "m", "prompt": "x"}, headers=sent)
    first = talk.replies[0]
    assert set(destinations(first)) <= set(ADDRESSES)
    mutation = first.request_headers.response.header_mutation
    set_by_us = {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
    assert set_by_us[DESTINATION] == ",".join(destinations(first))
    for name in set(sent) & set(STRIPPED_FROM_CLIENTS):
        assert name in mutation.remove_headers or name in set_by_us
    foreign = {value for value in sent.values() if len(value) > 3 and not value.startswith("10.0.0.")}
    assert not foreign & set(set_by_us.values())
    talk.close()
    world.assert_nothing_is_left()


@given(
    hint=st.none() | st.lists(st.sampled_from([*OUTSIDE, *ADDRESSES, "10.0.0.2", "*", "0.0.0.0/0"]), max_size=4),
    served=st.none() | st.sampled_from([*OUTSIDE, *ADDRESSES]),
)
@settings(max_examples=60, deadline=None)
def test_hints_and_reports_of_the_proxy_narrow_the_pool_and_never_widen_it(hint, served):
    talk = PLAIN.post({"model": "m", "prompt": "x"}, subset=None if hint is None else ",".join(hint))
    first = talk.replies[0]
    if first.HasField("immediate_response"):
        assert hint is not None
        assert not set(hint) & {*ADDRESSES, "10.0.0.2"}
        assert first.immediate_response.status.code == 503
    else:
        assert set(destinations(first)) <= set(ADDRESSES)
        talk.send(response_headers(200, served=served))
        assert sum(PLAIN.held()) == 1
    talk.close()
    PLAIN.assert_nothing_is_left()


@pytest.mark.parametrize("value", ["-1", "0", "NaN", "Infinity", "1e999", "9" * 400, "1ms", "\x00", "x" * 50_000])
def test_targets_that_make_no_sense_are_no_targets(value):
    """Where a target of 1 ms cannot be kept and is refused, they neither refuse nor steer nor reach a metric."""
    for address in ADDRESSES:
        PREDICTING.report(address, EndpointSignals(3.0, 8.0, 0.6))

    def ask(target: str):
        headers = {"x-llm-d-inference-objective": "batch", "x-slo-ttft-ms": target, "x-llm-d-slo-tpot-ms": target}
        talk = PREDICTING.post({"model": "m", "prompt": "x"}, headers=headers)
        talk.close()
        return talk.replies[0]

    assert ask("1").immediate_response.status.code == 429
    assert set(destinations(ask(value))) <= set(ADDRESSES)
    assert len(value) < 10 or value not in generate_latest(PREDICTING.registry).decode()
    PREDICTING.assert_nothing_is_left()


def test_an_objective_is_one_that_the_operator_named_or_none():
    for value in ("batch-", "BATCH", "-1", "100", "NaN", "x" * 10_000):
        arrival = Arrival(
            {":path": "/v1/completions", "x-llm-d-inference-objective": value}, b"{}", True, True, None, 0
        )
        assignment = PLAIN.director.decide(arrival)
        assert assignment.request.priority == 0
        PLAIN.director.end(assignment, EndCause.NATURAL, Usage())


def test_labels_of_an_endpoint_move_its_metrics_and_never_its_traffic():
    """`metricsAddress` is the operator's word, as the file is; it can name a host and nothing else."""
    text = """endpoints:
- name: a
  address: 10.0.0.1
  port: 8000
  labels: {metricsAddress: 10.9.9.9, metricsPort: "9100", x-gateway-destination-endpoint: "1.2.3.4:5", address: 6.6.6.6}
- {name: b, address: 10.0.0.2, port: 8000, labels: {metricsAddress: "evil@10.0.0.3/admin?"}}
- {name: c, address: "10.0.0.3:1/../", port: 8000}
"""
    file = parse_endpoints_file(text.encode(), "f")
    (endpoint,) = file.endpoints
    assert endpoint.address == "10.0.0.1:8000"
    assert str(ScrapeSettings().url(endpoint)) == "http://10.9.9.9:9100/metrics"
    assert len(file.bad) == 2


@pytest.mark.parametrize("entry", ["http://10.0.0.1:80/x", "a@b:80", "10.0.0.1:80/../..", "10.0.0.1:80?x", "h h:80"])
def test_an_endpoint_is_an_address_and_nothing_more(entry):
    with pytest.raises(DiscoveryError) as refused:
        parse_endpoints(entry)
    assert "\n" not in str(refused.value)


def through(world: World, number: int) -> None:
    """One request of which everything that a client names is new."""
    headers = {
        ":path": f"/v1/completions?{number}",
        "x-llm-d-inference-fairness-id": f"tenant-{number}",
        "x-llm-d-inference-objective": f"objective-{number}",
        "x-session-id": f"session-{number}",
        "x-request-id": f"id-{number}",
    }
    body = b'{"model":"model-%d","prompt":"x","cache_salt":"salt-%d"}' % (number, number)
    assignment = world.director.decide(Arrival(headers, body, True, True, None, world.clock.now_s))
    world.clock.now_s += 0.01
    world.director.response_started(assignment, 200, {"content-type": "text/event-stream"}, None)
    world.director.first_token(assignment)
    world.director.end(assignment, EndCause.NATURAL, Usage(3, 2, 1))


@pytest.mark.parametrize(
    "make", [lambda: World(SESSIONS % "session_id"), predicting_world], ids=["sessions", "latency"]
)
def test_names_without_end_take_neither_series_nor_memory_for_good(make):
    """Each request brings five new names; the bounds are passed after the first thousand."""
    world = make()
    for number in range(1_200):
        through(world, number)
    series = world.series()
    tracemalloc.start()
    for number in range(1_200, 1_600):
        through(world, number)
    grown_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert world.series() <= series
    assert grown_bytes < 400 * 3_000  # sessions, which have a bound of their own, and records that replaced others
    world.assert_nothing_is_left()


def test_fifty_thousand_models_and_tenants_fold_into_one_more_set_of_labels():
    world = World()
    for number in range(50_000):
        request = Request(str(number), model=f"m-{number}", target_model=f"t-{number}", fairness_id=f"f-{number}")
        world.metrics.requests.routed(request)
    page = generate_latest(world.registry.restricted_registry(["llm_d_epp_request_total"])).decode()
    names = [line for line in page.splitlines() if line.startswith("llm_d_epp_request_total{")]
    assert len(names) <= 2 * MAX_LABEL_SETS + 2
    assert any('model_name="other"' in name for name in names)
    assert world.count("llm_d_epp_request_total") == 50_000
