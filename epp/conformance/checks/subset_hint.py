"""The proxy's subset hint: metadata that limit a request to some endpoints of the pool."""

from collections.abc import Mapping
from typing import Any

from epp.conformance.check import Bench, NotApplicable, expect, must, should
from epp.conformance.checks._http import ask, bodyless, completion, post
from epp.conformance.http import Kind, Part, Side
from epp.conformance.manner import Manner
from epp.conformance.stub import Outcome

NAMESPACE = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"
UNKNOWN = "203.0.113.250:4711"


def hint(value: Any) -> Manner:
    return Manner(request_metadata={NAMESPACE: {KEY: value}})


@must
async def a_list_limits_the_choice(bench: Bench) -> None:
    """A list of `ip:port` limits the choice to the endpoints that it names, whichever they are."""
    pool = bench.pool()
    for endpoint in pool:
        _only(await bench.routed(ask(), manner=hint([endpoint])), endpoint)
    some = list(pool[:2])
    _only(await bench.routed(ask(), manner=hint(some)), *some)


@must
async def an_entry_without_port_means_every_port(bench: Bench) -> None:
    """An entry that is only an IP stands for every endpoint on that host."""
    pool = bench.pool()
    host = pool[0].rpartition(":")[0]
    _only(await bench.routed(ask(), manner=hint([host])), *_on(pool, host))


@should
async def an_entrys_port_counts(bench: Bench) -> None:
    """An entry with a port stands for that port only, also where the host has more endpoints."""
    pool = bench.pool()
    for endpoint in pool:
        if len(_on(pool, endpoint.rpartition(":")[0])) > 1:
            _only(await bench.routed(ask(), manner=hint([endpoint])), endpoint)
            return
    raise NotApplicable("needs a pool with two ports on one host")


@must
async def an_empty_list_allows_nothing(bench: Bench) -> None:
    """An empty list leaves no endpoint: 503."""
    await bench.refused(503, ask(), hint([]))


@must
async def unknown_addresses_allow_nothing(bench: Bench) -> None:
    """A list that names no endpoint of the pool leaves none: 503, and never a stranger."""
    await bench.refused(503, ask(), hint([UNKNOWN]))


@must
async def no_hint_means_no_limit(bench: Bench) -> None:
    """Without the namespace, or with the namespace and without the key, every endpoint may be chosen."""
    await bench.routed(ask())
    await bench.routed(ask(), manner=Manner(request_metadata={NAMESPACE: {"something-else": [UNKNOWN]}}))
    await bench.routed(ask(), manner=Manner(request_metadata={"something.else": {KEY: [UNKNOWN]}}))


@should
async def a_string_is_a_comma_separated_list(bench: Bench) -> None:
    """A string is read as a comma-separated list: not to read it would send the request where it must not go."""
    pool = bench.pool()
    _only(await bench.routed(ask(), manner=hint(pool[0])), pool[0])
    _only(await bench.routed(ask(), manner=hint(f"{pool[0]}, {UNKNOWN}")), pool[0])
    await bench.refused(503, ask(), hint(UNKNOWN))


@should
async def ipv6_matches(bench: Bench) -> None:
    """IPv6 entries match: bracketed with a port, bracketed, and bare."""
    pool = bench.pool()
    endpoint = next((endpoint for endpoint in pool if endpoint.startswith("[")), None)
    if endpoint is None:
        raise NotApplicable("needs a pool with an IPv6 endpoint")
    host = endpoint.rpartition(":")[0]
    _only(await bench.routed(ask(), manner=hint([endpoint])), endpoint)
    for entry in (host, host[1:-1]):
        _only(await bench.routed(ask(), manner=hint([entry])), *_on(pool, host))


@should
async def other_types_allow_nothing(bench: Bench) -> None:
    """A hint that is neither list nor string, or a list without strings, cannot be read and so allows nothing: 503."""
    unreadable: list[Any] = [42, True, {"address": "x"}, [42, None]]
    for value in unreadable:
        await bench.refused(503, ask(), hint(value))


@must
async def bodyless_requests_obey_the_hint(bench: Bench) -> None:
    """The hint counts for requests without a body too."""
    pool = bench.pool()
    _only(await bench.routed(bodyless(), manner=hint([pool[-1]])), pool[-1])
    await bench.refused(503, bodyless(), hint([]))


@should
async def a_hint_that_comes_with_the_body_counts(bench: Bench) -> None:
    """Metadata come with every message; a hint that is first there with the body still counts."""
    endpoint = bench.pool()[-1]
    metadata: Mapping[str, Any] = {NAMESPACE: {KEY: [endpoint]}}
    request = post(completion())
    async with bench.envoy.stream(request) as stream:
        await stream.send(Side.REQUEST, Part(Kind.HEADERS, pairs=request.headers))
        late = Manner(request_metadata=metadata)
        stream.manner = late
        await stream.send(Side.REQUEST, Part(Kind.BODY, True, request.body))
        await stream.answered(Side.REQUEST)
        _only(await stream.finish(), endpoint)


def _on(pool: Any, host: str) -> list[str]:
    return [endpoint for endpoint in pool if endpoint.rpartition(":")[0] == host]


def _only(outcome: Outcome, *allowed: str) -> None:
    named = set(outcome.endpoints)
    expect(named and named <= set(allowed), f"{outcome.destination} was named, only {', '.join(allowed)} allowed.")
