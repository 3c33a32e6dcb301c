"""Responses that the picker lets go of, on the real Envoy: they arrive whole, and how they ended is known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from load import ASKED, Site, load, metrics_of
from rig import STREAM
from scripted_server import BINARY, CHUNKS, STREAMS, closed_address
from stack import Metrics, eventually

from epp.endings import EndCause
from epp.server.access_log.awaiting import FIRST_STREAK
from epp.server.watching import PACE_EVENTS
from epp.sim.bootstraps import Bootstrap

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

END, LET_GO = "llm_d_epp_request_end_total", "llm_d_epp_responses_let_go_total"
CAUSES = [cause.value for cause in EndCause]
REPORTS = "300ms"
OTHERS = {"binary": BINARY, "dribbles": STREAM}


@asynccontextmanager
async def site_that_lets_go(*flags: str, **options: Any) -> AsyncIterator[Site]:
    """Records are relied on already, and Envoy reports often on requests that run."""
    async with load(flags=flags, report_interval=REPORTS, **options) as site:
        await site.rely_on_records()
        yield site


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(envoy_binary: Path) -> AsyncIterator[Site]:
    async with site_that_lets_go("--transport", "lean") as site:
        yield site


def serve(site: Site, behaviour: str) -> None:
    for server in site.servers:
        server.behaviour = behaviour
        server.breaks_off = False
        server.go_on.clear()


def ask(site: Site, **options: Any) -> "aiohttp.client._RequestContextManager":
    return site.client.post(f"{site.envoy.url}/v1/completions", **{"json": ASKED, **options})


async def counted(site: Site) -> Metrics:
    return await site.idle(site.pickers[0])


def cause_between(before: Metrics, after: Metrics) -> str:
    """How the one request between the two ended."""
    (cause,) = [cause for cause in CAUSES if after.total(END, cause=cause) != before.total(END, cause=cause)]
    assert after.total(END) == before.total(END) + 1
    return cause


async def has_been_let_go(site: Site) -> bool:
    """The picker's streams are over while their requests are in flight."""
    page = await metrics_of(site.pickers[0])
    in_flight = (await site.pickers[0].state())["ledger"]["streams"]
    return bool(in_flight) and page.total("llm_d_epp_extproc_streams_inflight") == 0


# --- the response ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [*STREAMS, *OTHERS])
async def test_it_arrives_byte_for_byte(site: Site, what: str) -> None:
    serve(site, what)
    before = await counted(site)
    async with ask(site) as response:
        got = await response.read()  # and decompressed
    assert cause_between(before, await counted(site)) == "natural"
    assert got == (
        b"".join(STREAMS["events" if what == "compressed" else what][1]) if what in STREAMS else OTHERS[what]
    )


async def test_the_picker_has_ended_its_stream_while_the_request_is_still_in_flight(site: Site) -> None:
    serve(site, "steady")
    before = await counted(site)
    async with ask(site) as response:
        assert (await response.content.readany()).startswith(CHUNKS[0])
        await eventually(lambda: has_been_let_go(site))
        site.go_on()
        assert (await response.read()).endswith(STREAM[len(CHUNKS[0]) :])
    assert cause_between(before, await counted(site)) == "natural"


# --- what is known of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["events", "events of CRLF", "events in pieces", "a huge event", "no JSON"])
async def test_its_tokens_are_counted(site: Site, what: str) -> None:
    serve(site, what)
    before = await counted(site)
    async with ask(site) as response:
        await response.read()
    after = await counted(site)
    families = {"output": 41, "input": 9, "cached": 4}
    for family, tokens in families.items():
        name = f"llm_d_epp_request_{family}_tokens_sum"
        assert after.total(name) - before.total(name) == tokens, family


async def test_ten_thousand_tokens_take_as_many_messages_as_a_hundred(site: Site) -> None:
    def messages() -> int:
        return sum(site.envoy.stats("ext_proc.stream_msgs_sent$").values())

    taken = {}
    for what in ("100 tokens", "10000 tokens"):
        serve(site, what)
        before = messages()
        for _ in range(3):
            async with ask(site) as response:
                await response.read()
        await counted(site)
        taken[what] = (messages() - before) / 3
    # Headers, body, headers, and chunks for a while, in which more than one event may have come. What is on its way
    # when the picker ends the stream was sent in vain.
    assert all(number <= 3 + 2 * PACE_EVENTS for number in taken.values()), taken


MOMENTS = ("watched", "let go")
ENDS = ("natural", "client_gone", "upstream_error")


# --- how it ended ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("end", ENDS)
async def test_who_broke_off_is_told_apart(site: Site, end: str, moment: str) -> None:
    await breaks_off(site, end, moment)


async def test_over_grpc_it_is_the_same() -> None:
    async with site_that_lets_go("--transport", "grpc") as site:
        for end in ENDS:
            for moment in MOMENTS:
                await breaks_off(site, end, moment)
        assert (await counted(site)).total(LET_GO) == 3


async def breaks_off(site: Site, end: str, moment: str) -> None:
    serve(site, {"watched": "breaks" if end == "upstream_error" else "stream", "let go": "steady"}[moment])
    before = await counted(site)
    async with ask(site) as response:
        await response.content.readany()
        if moment == "let go":
            await eventually(lambda: has_been_let_go(site))
            for server in site.servers:
                server.breaks_off = end == "upstream_error"
        if end == "client_gone":
            response.close()
        else:
            site.go_on()
            if end == "natural":
                assert (await response.read()).endswith(CHUNKS[-1])
            else:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
    assert cause_between(before, await counted(site)) == end


async def test_a_client_that_leaves_before_the_response_is_told_by_its_record_too(site: Site) -> None:
    serve(site, "mute")
    before = await counted(site)
    asking = asyncio.ensure_future(ask(site).__aenter__())

    async def in_flight() -> bool:
        return bool((await site.pickers[0].state())["ledger"]["streams"])

    await eventually(in_flight)
    asking.cancel()
    assert cause_between(before, await counted(site)) == "client_gone"


async def test_an_answer_of_envoys_own_is_a_server_that_never_answered(site: Site) -> None:
    serve(site, "reset")
    before = await counted(site)
    async with ask(site) as response:
        assert response.status == 503
        await response.read()
    assert cause_between(before, await counted(site)) == "upstream_error"


# --- what is watched all the same -----------------------------------------------------------------------------------


async def test_a_response_whose_model_is_renamed_is_watched_to_its_end(site: Site) -> None:
    serve(site, "events")
    before = await counted(site)
    async with ask(site, headers={"x-llm-d-model-name-rewrite": "other"}) as response:
        await response.read()
    after = await counted(site)
    assert cause_between(before, after) == "natural"
    assert after.total(LET_GO) == before.total(LET_GO)


# --- when things break ----------------------------------------------------------------------------------------------


def log_to_nowhere(bootstrap: Bootstrap) -> None:
    """The access log's cluster leads to a port where nobody listens."""
    host, port = closed_address().split(":")
    resources = bootstrap["static_resources"]
    (picker,) = (c for c in resources["clusters"] if c["name"] == "picker")
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    nowhere = {
        **{key: picker[key] for key in ("connect_timeout", "typed_extension_protocol_options")},
        "name": "nowhere",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "nowhere",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    resources["clusters"].append(nowhere)
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    common = manager["access_log"][0]["typed_config"]["common_config"]
    common["grpc_service"]["envoy_grpc"]["cluster_name"] = "nowhere"


async def test_a_promise_that_is_not_kept_costs_nothing_but_the_saving() -> None:
    async with load(patch=log_to_nowhere, report_interval=REPORTS) as site:
        serve(site, "events")
        for _ in range(3 * FIRST_STREAK):
            async with ask(site) as response:
                assert await response.read() == b"".join(STREAMS["events"][1])
        page = await counted(site)
        assert page.total(END, cause="natural") == page.total(END) == 3 * FIRST_STREAK
        assert page.total("llm_d_epp_request_output_tokens_sum") == 3 * FIRST_STREAK * 41
        assert page.total(LET_GO) == page.total("llm_d_epp_access_log_relied_on") == 0

        async def told() -> bool:
            return "that was promised did not come" in site.pickers[0].log()

        await eventually(told)


async def test_requests_whose_records_are_lost_hold_nothing_for_long_and_the_next_are_watched() -> None:
    async with site_that_lets_go() as site:
        serve(site, "steady")
        before = await counted(site)
        streams = await site.open_streams(20)
        await eventually(lambda: has_been_let_go(site))
        await asyncio.to_thread(site.envoy.kill)
        after = await counted(site)  # within three reports and two seconds
        assert after.total(END) - before.total(END) == 20
        assert {cause for cause in CAUSES if after.total(END, cause=cause) != before.total(END, cause=cause)} == {
            "lost"
        }
        assert after.total("llm_d_epp_access_log_relied_on") == 0
        for response in streams:
            response.close()


async def test_a_picker_that_ends_costs_no_response_that_was_let_go_and_does_not_wait_for_it() -> None:
    async with site_that_lets_go("--drain-timeout", "0s", "--transport", "lean") as site:
        serve(site, "steady")
        streams = await site.open_streams(10)
        await eventually(lambda: has_been_let_go(site))
        assert await asyncio.wait_for(site.pickers[0].terminate(), 20) == 0
        await site.finish(streams)


async def test_of_several_pickers_none_lets_go_by_records_that_come_to_another() -> None:
    """One log for two pickers: each is told of some of its requests at most."""
    async with load(pickers=2, report_interval=REPORTS) as site:
        serve(site, "events")
        for _ in range(40):
            async with ask(site) as response:
                assert await response.read() == b"".join(STREAMS["events"][1])
        pages = [await site.idle(picker) for picker in site.pickers]
        assert sum(page.total(END, cause="natural") for page in pages) == 40
        assert sum(page.total(END) for page in pages) == 40
        # Envoy has one stream of the log, so one picker hears of its own and the other of none.
        assert sorted(page.total("llm_d_epp_access_log_relied_on") for page in pages) == [0, 1]
        not_ours = [page.total("llm_d_epp_access_log_records_total", kind="not_ours") for page in pages]
        assert min(not_ours) == 0
        assert max(not_ours) >= 20
