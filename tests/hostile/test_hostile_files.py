"""Files and pages from the operator's side that are broken, or grow when they are read."""

import asyncio
import random
import tracemalloc
from collections import Counter

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from work import assert_work_is_in_proportion

from epp.config.errors import ConfigError
from epp.config.loader import load_document
from epp.pool.endpoint import Endpoint
from epp.pool.errors import DiscoveryError
from epp.pool.file_format import MAX_FILE_BYTES, parse_endpoints_file
from epp.pool.store import PoolStore
from epp.signals.engines import BUILT_IN_ENGINES, Engines
from epp.signals.errors import ScrapeErrorKind
from epp.signals.pace import Pace
from epp.signals.page import PageReader
from epp.signals.scraper import Scraper
from epp.signals.settings import ScrapeSettings


def aliases(levels: int, first: bytes, kind: bytes = b"[%s]") -> bytes:
    """Entries of which each stands for ten of the one before."""
    lines = [b"- &a0 " + first]
    lines += [b"- &a%d " % i + kind % b",".join([b"*a%d" % (i - 1)] * 10) for i in range(1, levels)]
    return b"endpoints:\n" + b"\n".join(lines) + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        aliases(30, b"[x]"),
        aliases(30, b"{k: v}", b"{<<: [%s]}"),
        aliases(30, b"{k: v}", b"{labels: {a: [%s]}}"),
        b"endpoints:\n- &a [*a, *a]\n- &b {name: *b}\n",
        b"endpoints:\n- {name: a, address: 1.1.1.1, port: 0x" + b"f" * 20_000 + b"}\n",
        b"{endpoints: [], 0x" + b"f" * 20_000 + b": 1}",
        b"endpoints:\n- {name: a, address: 1.1.1.1, port: " + b"9" * 5_000 + b"}\n",
        b"endpoints: " + b"[" * 100_000,
        b'{"endpoints": ' + b"[" * 100_000,
        b"endpoints:\n" + b"- " * 10_000,
    ],
    ids=lambda data: repr(data[:40]),
)
def test_an_endpoints_file_that_grows_when_read_is_refused_or_costs_its_entries(data):
    tracemalloc.start()
    try:
        file = parse_endpoints_file(data, "f")
    except DiscoveryError as error:
        message = str(error)
    else:
        assert not file.endpoints
        message = max((entry.message for entry in file.bad), key=len)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(message) < 500
    assert message.isprintable()
    assert peak_bytes < 50 << 20


def test_a_file_of_more_than_a_mebibyte_is_refused_before_it_is_read():
    with pytest.raises(DiscoveryError, match="larger than"):
        parse_endpoints_file(b"endpoints: []\n".ljust(MAX_FILE_BYTES + 1), "f")


def test_members_that_are_merged_over_and_over_are_given_up_on():
    wide = b"&w {" + b",".join(b"k%d: v" % i for i in range(2_000)) + b"}"
    data = b"endpoints:\n- " + wide + b"\n" + b"- {<<: *w}\n" * 600
    with pytest.raises(DiscoveryError, match="too many members"):
        parse_endpoints_file(data, "f")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "9" * 5_000,
        "a: -" + "9" * 100_000,
        "a: 0x" + "f" * 5_000,
        "a: " + "9" * 5_000 + ".5e" + "9" * 5_000,
    ],
    ids=lambda text: text[:8],
)
def test_a_number_too_long_to_be_one_is_text_in_a_configuration(text):
    assert load_document(text, "f").value == {"a": text[3:]}


@pytest.mark.parametrize("text", ["a: " + "[" * 1_500, "- " * 1_500, "a: &a [*a]"])
def test_a_configuration_nested_beyond_reason_is_one_remark(text):
    with pytest.raises(ConfigError) as refused:
        load_document(text, "f")
    assert len(refused.value.problems) == 1


LINES = {
    "digits": b"vllm:num_requests_running " + b"1" * 60,
    "digits and a letter": b"vllm:num_requests_running " + b"1" * 60 + b"x",
    "labels": b"vllm:num_requests_running{" + b'a="b",' * 10,
    "quotes": b"vllm:num_requests_running{a=" + b'"\\' * 30,
    "braces": b"vllm:num_requests_running" + b"{}" * 30 + b" 1",
    "blanks": b"vllm:num_requests_running" + b" \t" * 30,
    "names": b"vllm:" * 12,
    "nothing": b"\n" * 60,
}


@pytest.mark.parametrize("joined", [b"\n", b""])
@pytest.mark.parametrize("name", LINES)
def test_no_line_of_a_metrics_page_is_slow(name, joined):
    """Whether the page is one line that goes on and on, or the line many times."""
    families = BUILT_IN_ENGINES[0].families
    assert_work_is_in_proportion(lambda n: PageReader(families).read((LINES[name] + joined) * n), 2_000)


async def test_a_page_of_100_mb_is_dropped_at_the_bound_and_the_endpoint_stays_unknown():
    sent_bytes = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent_bytes
        response = web.StreamResponse()
        await response.prepare(request)
        piece = b"vllm:num_requests_running 1\n" * 4096
        while sent_bytes < 100_000_000:
            await response.write(piece)
            sent_bytes += len(piece)
        return response

    app = web.Application()
    app.router.add_get("/metrics", endless)
    errors: Counter[ScrapeErrorKind] = Counter()
    store, clock = PoolStore(), asyncio.get_running_loop().time
    settings = ScrapeSettings(pace=Pace(interval_s=3600.0), timeout_s=60.0)
    scraper = Scraper(store, settings, Engines(), tuple, clock, random.Random(1), lambda kind: errors.update([kind]))
    async with TestServer(app, host="127.0.0.1") as server:
        store.replace([Endpoint("default", "a", "127.0.0.1", server.port or 0)])
        tracemalloc.start()
        run = asyncio.create_task(scraper.run())
        async with asyncio.timeout(60):
            while not errors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        scraper.stop()
        await run
    assert errors == {ScrapeErrorKind.TOO_LARGE: 1}
    assert store.snapshot().signals[0].scraped_at_s is None
    assert peak_bytes < 4 * settings.max_page_bytes
    assert sent_bytes < 100_000_000
