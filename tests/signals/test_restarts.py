"""A server that is restarted in place is noticed by its page."""

import asyncio
import random

import pytest

from epp.pool.endpoint import Endpoint
from epp.pool.store import PoolStore
from epp.signals.engines import BUILT_IN_ENGINES, Engines
from epp.signals.mapping import totals
from epp.signals.pace import Pace
from epp.signals.page import PageReader, unlabelled_value
from epp.signals.restarts import PROCESS_START, Restarts
from epp.signals.scraper import Scraper
from epp.signals.settings import ScrapeSettings
from epp.sim.config import SimConfig
from epp.sim.server import SimServer


def counts(*pages):
    restarts = Restarts()
    return [restarts.count(started, {} if total is None else {"t": total}) for started, total in pages]


def test_a_later_start_is_a_restart():
    assert counts((100.0, None), (100.0, None), (100.5, None), (100.5, None), (200.0, None)) == [0, 0, 1, 1, 2]


def test_totals_that_shrink_are_a_restart_where_no_start_is_told():
    assert counts((None, 5.0), (None, 9.0), (None, 2.0), (None, 2.0), (None, 1.0)) == [0, 0, 1, 1, 2]


def test_a_total_that_is_missing_for_a_while_is_remembered():
    assert counts((None, 5.0), (None, None), (None, 4.0)) == [0, 0, 1]


def test_processes_that_take_turns_on_one_port_are_not_restarts():
    assert counts(*[(100.0, 7.0), (90.0, 3.0), (100.0, 7.0), (90.0, 3.0)])[1:] == [0, 0, 0]
    assert counts(*[(90.0, 3.0), (100.0, 7.0)] * 3) == [0, 1, 1, 1, 1, 1]


def test_a_page_that_says_nothing_never_restarts():
    assert counts((None, None), (100.0, None), (None, None), (100.0, None)) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("page", "value"),
    [
        (b"process_start_time_seconds 1.5e+09", 1.5e9),
        (b"a 1\nprocess_start_time_seconds 3 123\nb 2\n", 3.0),
        (b"# HELP process_start_time_seconds 4\nxprocess_start_time_seconds 4\n", None),
        (b"process_start_time_seconds NaN\n", None),
        (b"process_start_time_seconds_x 1\nprocess_start_time_seconds\n", None),
    ],
)
def test_the_start_is_read_where_it_stands(page, value):
    assert unlabelled_value(page, PROCESS_START) == value


def test_totals_of_all_ranks_are_added_and_a_broken_one_is_left_out():
    vllm = BUILT_IN_ENGINES[0]
    page = b'vllm:prompt_tokens_total{engine="0"} 3\nvllm:prompt_tokens_total{engine="1"} 4\n'
    read = PageReader(vllm.families).read(page + b"vllm:generation_tokens_total NaN\n")
    assert totals(vllm, read.samples) == {"vllm:prompt_tokens_total": 7.0}


async def test_a_simulated_server_restarted_in_place_counts_one_restart():
    store, clock = PoolStore(), asyncio.get_running_loop().time
    settings = ScrapeSettings(pace=Pace(0.01), timeout_s=30.0)
    scraper = Scraper(store, settings, Engines(), tuple, clock, random.Random(1), lambda kind: None)

    async def restarts_become(value):
        async with asyncio.timeout(20):
            while store.snapshot().signals[0].restarts != value:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async with SimServer(SimConfig()) as server:
        store.replace([Endpoint("default", "a", "127.0.0.1", server.port)])
        assert store.snapshot().signals[0].restarts is None
        run = asyncio.create_task(scraper.run())
        try:
            await restarts_become(0)
            port = server.port
            await server.restart()
            assert server.port == port
            await restarts_become(1)
        finally:
            scraper.stop()
            await run
