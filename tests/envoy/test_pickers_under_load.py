"""Pickers that end or are swamped while requests keep coming, behind the real Envoy. `make soak` runs it for longer.

For the ways in which single streams end see test_streams_that_break.py; for one picker without another beside it,
test_pickers_that_end.py and test_bootstraps_without_picker.py.
"""

import signal

import pytest
from load import Answers, Site, load, metrics_of
from stack import eventually

from epp.sim.demo_config import PREDICTED_LATENCY_CONFIG

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary")]

PER_S = 100
STREAMS = 300
HEALTH_INTERVAL_S = 0.25
DRAIN = ["--drain-timeout", "3s"]  # many times the interval of the checks
# What an allocator may keep after a storm of this size; a leak of a request's body or response would be beyond it.
KEPT_BYTES = 24 * 2**20
REQUESTS = "llm_d_epp_request_total"


async def both_pick(site: Site) -> bool:
    """And have done so for a second."""
    return min([(await metrics_of(picker)).total(REQUESTS) for picker in site.pickers]) >= PER_S / 2


async def more_are_served(answers: Answers, number: float) -> None:
    goal = answers.served + number

    async def reached() -> bool:
        return answers.served >= goal

    await eventually(reached)


async def test_a_picker_of_two_that_is_told_to_stop_costs_no_request() -> None:
    """Failing closed, so that a request is served only if a picker answered."""
    two = {"pickers": 2, "behaviours": ["good", "stream"], "fail_open": False, "flags": DRAIN}
    async with load(**two, health_interval_s=HEALTH_INTERVAL_S) as site:
        leaving, staying = site.pickers
        site.servers[1].go_on.set()  # streams, but does not wait
        async with site.paced(PER_S) as answers:
            await eventually(lambda: both_pick(site))
            await leaving.signal(signal.SIGTERM)
            assert await leaving.wait() == 0
            await more_are_served(answers, PER_S / 2)
        assert answers.failed == []
        assert answers.served > PER_S
        after = (await site.idle(staying)).total(REQUESTS)
        for _ in range(10):
            await site.ask(answers)
        assert answers.failed == []
        assert (await site.idle(staying)).total(REQUESTS) == after + 10
        causes = ("draining", "closing", "stopped")
        assert [leaving.log().count(f'"message":"{cause}') for cause in causes] == [1, 1, 1]


async def test_a_picker_of_two_that_is_killed_costs_no_request_and_is_avoided_within_a_second() -> None:
    """Failing open, with Envoy's checks as shipped, which take 10 s: it is the breaking connections that tell."""
    async with load(pickers=2) as site:
        killed, staying = site.pickers
        async with site.paced(PER_S) as answers:
            await eventually(lambda: both_pick(site))
            await killed.kill()
            await more_are_served(answers, PER_S)  # about a second
            picked_before, asked_before = (await metrics_of(staying)).total(REQUESTS), answers.asked
            await more_are_served(answers, PER_S)
        assert answers.failed == []
        assert answers.served > PER_S
        picked = (await site.idle(staying)).total(REQUESTS) - picked_before
        assert picked >= answers.asked - asked_before - 20  # half of them would meet the one that is gone


@pytest.mark.parametrize(
    ("bootstrap", "flags"),
    [
        ("recommended", []),
        ("gateway", ["--transport", "grpc"]),
        ("recommended", ["--config-text", PREDICTED_LATENCY_CONFIG]),
    ],
    ids=["lean", "grpc", "predicted latency"],
)
async def test_hundreds_of_long_streams_leave_no_counter_no_task_and_no_memory(
    bootstrap: str, flags: list[str]
) -> None:
    async with load(bootstrap=bootstrap, behaviours=["stream", "stream"], flags=flags) as site:
        (picker,) = site.pickers
        await site.finish(await site.open_streams(20))
        before = await site.footprint(picker)
        for _ in range(2):
            streams = await site.open_streams(STREAMS)
            page = await metrics_of(picker)
            assert page.total("llm_d_epp_inflight_requests") == STREAMS
            assert page.total("llm_d_epp_extproc_streams_inflight") == STREAMS
            for response in streams[::10]:
                response.close()
            await site.finish([response for response in streams if not response.closed])
        after = await site.footprint(picker)
        assert after.resident_bytes <= before.resident_bytes + KEPT_BYTES

        async def as_few_tasks_as_before() -> bool:
            return (await site.footprint(picker)).tasks <= before.tasks

        await eventually(as_few_tasks_as_before)
        page = await site.idle(picker)
        ends = {cause: page.total("llm_d_epp_request_end_total", cause=cause) for cause in ("natural", "client_gone")}
        assert ends == {"natural": 20 + 2 * STREAMS * 9 // 10, "client_gone": 2 * STREAMS // 10}
