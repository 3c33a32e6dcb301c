"""Where the picker says a request goes."""

from ipaddress import ip_address

from epp.conformance.check import Bench, NotApplicable, expect, must, should
from epp.conformance.checks._http import ask
from epp.conformance.mutation import value_of
from epp.conformance.stub import DESTINATION, LB_NAMESPACE

STEERING = "test-epp-endpoint-selection"
SCORES = "x-gateway-destination-endpoint-scores"
ELSEWHERE = "203.0.113.250:4711"  # reserved for documentation: no pool has it

# What only a picker may say to a model server, and what only a picker reads.
CONTROL_HEADERS = (
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-llm-d-request-dropped-reason",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
)


@must
async def header_and_metadata_are_equal(bench: Bench) -> None:
    """The destination stands in the request header and in the `envoy.lb` metadata, with identical values."""
    outcome = await bench.routed(ask())
    header, metadata = outcome.destination, outcome.metadata_destination
    expect(header == metadata, f"The header says {header!r}, the metadata {metadata!r}.")


@must
async def destination_is_a_list_of_addresses(bench: Bench) -> None:
    """The destination is `ip:port` or `ip:port,ip:port…`, IPv6 in brackets, without spaces."""
    for entry in (await bench.routed(ask())).endpoints:
        host, _, port = entry.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        try:
            address = ip_address(host[1:-1] if bracketed else host)
        except ValueError:
            expect(False, f"{entry!r} is not ip:port.")
        else:
            expect(bracketed == (address.version == 6), f"{entry!r}: IPv6, and only that, goes in brackets.")
        expect(port.isdecimal() and 0 < int(port) < 65536, f"{entry!r} has no port.")


@must
async def destinations_are_members_of_the_pool(bench: Bench) -> None:
    """Only endpoints of the picker's own pool are named."""
    pool = bench.pool()
    for _ in range(5):
        strangers = set((await bench.routed(ask())).endpoints) - set(pool)
        expect(not strangers, f"{', '.join(sorted(strangers))} is not in the pool.")


@must
async def no_endpoint_is_named_twice(bench: Bench) -> None:
    """Fallbacks are other endpoints than the first choice, and than each other."""
    endpoints = (await bench.routed(ask())).endpoints
    expect(len(set(endpoints)) == len(endpoints), f"The list is {','.join(endpoints)}.")


@should
async def list_is_as_long_as_configured(bench: Bench) -> None:
    """As many endpoints are named as the target is configured to name, or all there are."""
    if bench.known.destinations is None:
        raise NotApplicable("needs --destinations, how many endpoints the target names per request")
    wanted = min(bench.known.destinations, len(bench.pool()))
    endpoints = (await bench.routed(ask())).endpoints
    expect(len(endpoints) == wanted, f"{len(endpoints)} were named instead of {wanted}.")


@should
async def list_is_in_order_of_scores(bench: Bench) -> None:
    """Where the picker tells its scores, the destinations are listed from the best to the worst."""
    outcome = await bench.routed(ask())
    scores = outcome.rules.metadata.get(LB_NAMESPACE, {}).get(SCORES)
    if not isinstance(scores, dict):
        raise NotApplicable("needs a target that emits its scores (--emit-endpoint-scores)")
    expect(set(outcome.endpoints) <= set(scores), "A destination has no score.")
    listed = [float(scores[endpoint]) for endpoint in outcome.endpoints]
    expect(listed == sorted(listed, reverse=True), f"The scores of the list are {listed}.")


@must
async def a_clients_destination_does_not_count(bench: Bench) -> None:
    """A destination header that the client sent is overwritten: no request goes where a client says."""
    outcome = await bench.routed(ask([(DESTINATION, ELSEWHERE), (DESTINATION, ELSEWHERE)]))
    values = [value for name, value in outcome.upstream if name == DESTINATION]
    expect(len(values) <= 1, "The client's destination header is still there besides the picker's.")
    expect(ELSEWHERE not in ",".join(values), "The client's destination header was let through.")
    expect(outcome.metadata_destination != ELSEWHERE, "The client's destination is in the metadata.")


@should
async def a_clients_control_headers_are_stripped(bench: Bench) -> None:
    """Headers that steer routing, or are for the picker alone, do not reach a model server when a client sends them."""
    outcome = await bench.routed(ask([(name, "203.0.113.250") for name in CONTROL_HEADERS]))
    left = [name for name, value in outcome.upstream if name in CONTROL_HEADERS and value == "203.0.113.250"]
    expect(not left, f"These went through: {', '.join(left)}.")


@should
async def route_cache_is_cleared(bench: Bench) -> None:
    """The reply that names the destination clears Envoy's route cache, so that routes may match on it."""
    outcome = await bench.routed(ask())
    expect(outcome.rules.request.clears_route_cache, "It does not.")


@should
async def destination_is_overwritten_explicitly(bench: Bench) -> None:
    """The destination header says OVERWRITE: Envoy's default is not the append that its API documents, others' is."""
    outcome = await bench.routed(ask())
    for mutation in outcome.rules.request.mutations:
        for option in mutation.set_headers:
            if option.header is not None and option.header.key.lower() == DESTINATION and value_of(option):
                explicit = option.append_action != 0 or option.append is False
                expect(explicit, "Neither append_action nor append is given.")


@should
async def a_test_picker_is_steered_by_ip_and_port(bench: Bench) -> None:
    """With the testing filter, `test-epp-endpoint-selection` limits the choice to one, two or three addresses."""
    pool = _steerable(bench)
    for count in (1, 2, 3):
        chosen = pool[:count]
        outcome = await bench.routed(ask([(STEERING, ",".join(chosen))]))
        expect(set(outcome.endpoints) <= set(chosen), f"{outcome.destination} was named, {','.join(chosen)} allowed.")


@should
async def a_test_picker_is_steered_by_ip(bench: Bench) -> None:
    """With the testing filter, an address without a port stands for every port of that host."""
    first, *_ = _steerable(bench)
    host = first.rpartition(":")[0]
    outcome = await bench.routed(ask([(STEERING, host)]))
    hosts = {endpoint.rpartition(":")[0] for endpoint in outcome.endpoints}
    expect(hosts == {host}, f"{outcome.destination} was named, only {host} allowed.")


def _steerable(bench: Bench) -> list[str]:
    if not bench.known.test_plugins:
        raise NotApplicable("needs --test-plugins, a target that runs the conformance test plugins")
    return list(bench.pool())
