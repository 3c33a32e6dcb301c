from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from epp.signals.engines import BUILT_IN_ENGINES
from epp.signals.errors import ScrapeError, ScrapeErrorKind
from epp.signals.page import Page
from epp.signals.restarts import PROCESS_START
from epp.signals.source import PageSource

FAMILIES = BUILT_IN_ENGINES[0].families


class Server:
    """Serves a page of a registry as an exporter of Prometheus' client library does, and notes what it is asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.running = Gauge("vllm:num_requests_running", "…", ["engine"], registry=self.registry)
        self.running.labels("0").set(4)
        Counter("vllm:prompt_tokens", "…", registry=self.registry).inc(7)
        Gauge(PROCESS_START, "…", registry=self.registry).set(1e9)
        Gauge("vllm:something_else", "…", registry=self.registry)
        self.answer: Callable[[list[str]], bytes] = self.by_name
        self.asked: list[str] = []

    def by_name(self, names: list[str]) -> bytes:
        return generate_latest(self.registry.restricted_registry(names) if names else self.registry)

    async def fetch(self, names: tuple[str, ...] = ()) -> bytes:
        self.asked.append("names" if names else "whole")
        return self.answer(list(names))


def source_of(server: Server) -> PageSource:
    return PageSource(server, FAMILIES)  # type: ignore[arg-type]


def running(page: Page) -> float | None:
    return page.samples["vllm:num_requests_running"][0].value


async def test_after_the_first_page_only_what_is_wanted_is_asked_for() -> None:
    server = Server()
    source = source_of(server)
    first = await source.read()
    server.running.labels("0").set(5)
    second = await source.read()
    assert server.asked == ["whole", "names"]
    assert second.size_bytes < first.size_bytes
    assert (running(first.page), running(second.page)) == (4.0, 5.0)
    assert first.started_at_s == second.started_at_s == 1e9
    assert second.page.samples["vllm:prompt_tokens_total"][0].value == 7.0


async def test_a_family_that_appears_later_is_seen() -> None:
    server = Server()
    source = source_of(server)
    await source.read()
    Gauge("vllm:kv_cache_usage_perc", "…", registry=server.registry).set(0.5)
    assert "vllm:kv_cache_usage_perc" in (await source.read()).page.samples
    assert server.asked == ["whole", "names"]


async def test_a_server_that_ignores_names_is_read_all_the_same() -> None:
    server = Server()
    server.answer = lambda names: server.by_name([])
    source = source_of(server)
    for _ in range(3):
        assert running((await source.read()).page) == 4.0
    assert server.asked == ["whole", "names", "names"]


def _nothing(names: list[str]) -> bytes:
    return b""


def _refused(names: list[str]) -> bytes:
    raise ScrapeError(ScrapeErrorKind.STATUS, "HTTP 400")


def _half(names: list[str]) -> bytes:
    return b"vllm:prompt_tokens_total 7\n"


@pytest.mark.parametrize("answer", [_nothing, _refused, _half], ids=["nothing", "refused", "half"])
async def test_a_server_that_is_no_good_at_names_is_read_whole_until_it_is_another(
    answer: Callable[[list[str]], bytes],
) -> None:
    server = Server()
    server.answer = lambda names: answer(names) if names else server.by_name([])
    source = source_of(server)
    for _ in range(4):
        assert running((await source.read()).page) == 4.0
    assert server.asked == ["whole", "names", "whole", "whole", "whole"]
    source.server_is_new()
    server.answer = server.by_name
    await source.read()
    assert server.asked[-1] == "names"


async def test_a_server_that_fails_altogether_is_not_blamed_for_names() -> None:
    server = Server()
    source = source_of(server)
    await source.read()

    for kind, asked in ((ScrapeErrorKind.STATUS, ["names", "whole"]), (ScrapeErrorKind.TIMEOUT, ["names"])):

        def fail(names: list[str], kind: ScrapeErrorKind = kind) -> bytes:
            raise ScrapeError(kind, "down")

        server.answer, server.asked = fail, []
        with pytest.raises(ScrapeError):
            await source.read()
        assert server.asked == asked
    server.answer, server.asked = server.by_name, []
    await source.read()
    assert server.asked == ["names"]


async def test_the_same_page_again_is_the_same_reading() -> None:
    server = Server()
    source = source_of(server)
    await source.read()
    second = await source.read()
    assert await source.read() is second
    server.running.labels("1").set(1)
    assert len((await source.read()).page.samples["vllm:num_requests_running"]) == 2
