"""Gateway API Inference Extension's conformance tests, as far as they concern a picker, with the real Envoy.

Envoy is set up as gateways do it for those tests: a picker per pool, a route per pool and one that weighs two of them,
servers that tell who they are, and requests that name in a header which servers they may reach. docs/reliability.md
maps the tests' names to ours.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from echo_pools import Cluster, Pool, echo_pools, servers_hit

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
OTHER_HOSTS = ["127.0.0.4", "127.0.0.5", "127.0.0.6"]
BOOTSTRAPS = ["recommended", "gateway"]
WEIGHTS = {"primary": 70, "secondary": 30}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BOOTSTRAPS)
async def cluster(request: pytest.FixtureRequest, envoy_binary: Path) -> AsyncIterator[Cluster]:
    """Three pools behind one Envoy: `primary` with three data-parallel ranks on each host, `h2c` speaking that."""
    pools = {
        "primary": Pool(HOSTS, ports=3),
        "secondary": Pool(OTHER_HOSTS),
        "h2c": Pool(["127.0.0.7", "127.0.0.8"], protocol="h2c"),
    }
    async with echo_pools(request.param, pools, WEIGHTS) as cluster:
        yield cluster


def on_hosts(pool: Pool, hosts: list[str]) -> set[str]:
    return {address for address in pool.addresses if address.rpartition(":")[0] in hosts}


# --- the picker's word ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [1, 2, 3])
async def test_requests_reach_only_the_servers_that_the_picker_was_told(cluster: Cluster, named: int) -> None:
    allowed = cluster.pools["secondary"].addresses[:named]
    hit = servers_hit(await cluster.ask_many("/secondary/v1/completions", select=",".join(allowed)))
    assert set(hit) == set(allowed)


async def test_an_address_without_a_port_means_every_rank_on_it(cluster: Cluster) -> None:
    primary = cluster.pools["primary"]
    hit = servers_hit(await cluster.ask_many("/primary", select=HOSTS[0]))
    assert set(hit) == on_hosts(primary, HOSTS[:1])
    assert len(hit) == 3
    hit = servers_hit(await cluster.ask_many("/primary", select=",".join(HOSTS[1:])))
    assert set(hit) == on_hosts(primary, HOSTS[1:])


@pytest.mark.parametrize("rank", range(3))
async def test_an_address_with_a_port_means_that_rank(cluster: Cluster, rank: int) -> None:
    address = cluster.pools["primary"].servers[rank * len(HOSTS)].address
    hit = servers_hit(await cluster.ask_many("/primary", select=address))
    assert set(hit) == {address}


async def test_the_server_that_served_is_told_to_the_picker_where_the_proxy_tells_it(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    tells = request.node.callspec.params["cluster"] == "recommended"  # ORIGINAL_DST names nobody
    for path, pool in cluster.pools.items():
        for address in pool.addresses:
            answer = await cluster.ask(f"/{path}", select=address)
            assert (answer.status, answer.server) == (200, address)
            assert answer.served_header == (address if tells else None)


# --- several pools --------------------------------------------------------------------------------------------------


async def test_weights_split_requests_among_pools_and_each_picker_keeps_to_its_own(cluster: Cluster) -> None:
    primary, secondary = cluster.pools["primary"], cluster.pools["secondary"]
    allowed = [*on_hosts(primary, HOSTS[:2]), *secondary.addresses[:2]]
    requests = 200
    hit = servers_hit(await cluster.ask_many("/weighted", select=",".join(allowed), requests=requests))
    assert set(hit) <= set(allowed)
    share = sum(hit[address] for address in primary.addresses) / requests
    expected = WEIGHTS["primary"] / sum(WEIGHTS.values())
    tolerance = max(0.10, 4.5 * (expected * (1 - expected) / requests) ** 0.5)
    assert share == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("pool", list(WEIGHTS))
async def test_requests_without_a_body_reach_the_pool_of_their_path(cluster: Cluster, pool: str) -> None:
    answers = [await cluster.ask(f"/{pool}", method="GET") for _ in range(10)]
    assert set(servers_hit(answers)) <= set(cluster.pools[pool].addresses)


@pytest.mark.parametrize("pool", list(WEIGHTS))
async def test_a_picker_that_is_told_of_others_servers_only_refuses(cluster: Cluster, pool: str) -> None:
    (other,) = WEIGHTS.keys() - {pool}
    answer = await cluster.ask(f"/{pool}", select=cluster.pools[other].addresses[0])
    assert answer.status == 429  # there are servers, and the filters left none of them


@pytest.mark.parametrize("port", ["", ":1", ":8888"])
async def test_the_port_that_a_route_or_a_client_names_does_not_count(cluster: Cluster, port: str) -> None:
    for method in ("GET", "POST"):
        answer = await cluster.ask("/secondary", method=method, host=f"pool.example{port}")
        assert answer.status == 200
        assert answer.server in cluster.pools["secondary"].addresses


# --- what the servers speak -----------------------------------------------------------------------------------------


async def test_servers_are_reached_by_the_protocol_of_their_pool(cluster: Cluster) -> None:
    for name, pool in cluster.pools.items():
        for address in pool.addresses:
            answer = await cluster.ask(f"/{name}", select=address)
            assert (answer.status, answer.server, answer.protocol) == (200, address, pool.protocol)
        answer = await cluster.ask(f"/{name}", method="GET")
        assert (answer.status, answer.protocol) == (200, pool.protocol)
    assert {pool.protocol for pool in cluster.pools.values()} == {"http", "h2c"}


# --- without a picker -----------------------------------------------------------------------------------------------


async def test_a_pool_without_its_picker_fails_as_it_is_set_to_and_the_other_goes_on() -> None:
    opened, closed = Pool(HOSTS, fail_open=True), Pool(OTHER_HOSTS, fail_open=False)
    async with echo_pools("recommended", {"open": opened, "closed": closed}) as cluster:
        for name, pool in cluster.pools.items():
            for address in pool.addresses:
                assert (await cluster.ask(f"/{name}", select=address)).server == address
        await opened.picker.kill()
        for method in ("GET", "POST"):
            served = await cluster.ask("/open", method=method, select=opened.addresses[0])
            assert served.status == 200
            assert served.server in opened.addresses
            steered = await cluster.ask("/closed", method=method, select=closed.addresses[1])
            assert steered.server == closed.addresses[1]
        await closed.picker.kill()
        for method in ("GET", "POST"):
            assert (await cluster.ask("/closed", method=method, select=closed.addresses[0])).status == 503
