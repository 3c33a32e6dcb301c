import asyncio
import datetime
import gzip
import ipaddress
import logging
import random
import ssl
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import UNKNOWN_SIGNALS, EndpointSignals
from epp.pool.store import PoolStore
from epp.signals.engines import Engines
from epp.signals.errors import ScrapeErrorKind
from epp.signals.pace import Census, Pace
from epp.signals.scraper import FAILING_AFTER, Scraper, ScrapeStats
from epp.signals.settings import ScrapeSettings

PAGE = """\
vllm:num_requests_running{engine="0"} 4.0
vllm:num_requests_waiting{engine="0"} 20.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""
ALWAYS = Pace(0.01, idle_interval_s=0.01)
FAST = ScrapeSettings(pace=ALWAYS, timeout_s=30.0)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Lab:
    """A scraper at work on a store, with what it told of errors."""

    store: PoolStore
    scraper: Scraper
    errors: Counter[ScrapeErrorKind]
    servers: AsyncExitStack
    in_flight: set[str]
    endpoints: dict[str, Endpoint] = field(default_factory=dict)

    async def serve(self, name: str, answer: Answer, context: ssl.SSLContext | None = None) -> TestServer:
        """A server on a port of its own, and an endpoint for it in the pool."""
        app = web.Application()
        app.router.add_get("/metrics", answer)
        server = TestServer(app, host="127.0.0.1", skip_url_asserts=True)
        await server.start_server(ssl=context)
        self.servers.push_async_callback(server.close)
        assert server.port is not None
        self.add(name, server.port)
        return server

    async def serve_raw(self, name: str, answer: bytes) -> None:
        """A server that says `answer` to whatever it is asked, and hangs up."""

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.servers.callback(server.close)
        self.add(name, server.sockets[0].getsockname()[1])

    def add(self, name: str, port: int, **labels: str) -> None:
        self.put(Endpoint("default", name, "127.0.0.1", port, labels))

    def put(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.name] = endpoint
        self.store.replace(self.endpoints.values())

    def remove(self, name: str) -> None:
        del self.endpoints[name]
        self.store.replace(self.endpoints.values())

    def signals(self, name: str) -> EndpointSignals:
        snapshot = self.store.snapshot()
        return snapshot.signals[snapshot.row_by_id[f"default/{name}"]]

    def stats(self, name: str) -> ScrapeStats:
        return self.scraper.stats[f"default/{name}"]

    async def scraped(self, name: str, times: int = 1) -> None:
        """Until `name` has been scraped `times` more, whatever came of it."""
        target = self.stats(name).scrapes + times
        await until(lambda: self.stats(name).scrapes >= target)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for happens in a server, which has no event for it)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def lab(settings: ScrapeSettings = FAST) -> AsyncIterator[Lab]:
    store = PoolStore()
    errors: Counter[ScrapeErrorKind] = Counter()

    def count(kind: ScrapeErrorKind) -> None:
        errors[kind] += 1

    in_flight: set[str] = set()
    clock = asyncio.get_running_loop().time
    scraper = Scraper(store, settings, Engines(), lambda: frozenset(in_flight), clock, random.Random(7), count)
    async with AsyncExitStack() as servers:
        run = asyncio.create_task(scraper.run())
        await asyncio.sleep(0)
        try:
            yield Lab(store, scraper, errors, servers, in_flight)
        finally:
            scraper.stop()
            async with asyncio.timeout(20):
                await run


async def answer_page(_: web.Request) -> web.Response:
    return web.Response(text=PAGE)


async def hang(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


async def test_a_page_becomes_signals_with_their_age() -> None:
    async with lab() as at:
        before = asyncio.get_running_loop().time()
        await at.serve("a", answer_page)
        assert at.signals("a") is UNKNOWN_SIGNALS
        await until(lambda: at.signals("a") is not UNKNOWN_SIGNALS)
        read = at.signals("a")
        assert (read.waiting_requests, read.running_requests, read.kv_cache_usage_ratio) == (20.0, 4.0, 0.5)
        assert read.scraped_at_s is not None
        assert before <= read.scraped_at_s <= asyncio.get_running_loop().time()
        await at.scraped("a", 3)
        assert (at.signals("a").scraped_at_s or 0.0) > read.scraped_at_s
        assert not at.errors


async def test_a_page_that_hangs_delays_no_other() -> None:
    async with lab() as at:
        for number in range(5):
            await at.serve(f"hanging-{number}", hang)
        await at.serve("healthy", answer_page)
        await at.scraped("healthy", 5)
        assert [at.stats(f"hanging-{number}").scrapes for number in range(5)] == [0] * 5


async def test_servers_that_keep_hanging_leave_the_slots_to_the_healthy() -> None:
    async with lab(ScrapeSettings(pace=ALWAYS, timeout_s=0.3, max_at_once=4)) as at:
        server = await at.serve("hanging-0", hang)
        for number in range(1, 10):
            at.add(f"hanging-{number}", server.port or 0)
            at.put(replace(at.endpoints[f"hanging-{number}"], host=f"127.0.1.{number}", metrics_host="127.0.0.1"))
        await until(lambda: all(stats.failures for stats in at.scraper.stats.values()))
        await at.serve("healthy", answer_page)
        failures = at.errors.total()
        await at.scraped("healthy", 30)
        assert at.errors.total() - failures < 30


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(3600):
        await response.write(b"# still coming\n")
        await asyncio.sleep(0.02)
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"vllm:num_requests_running 1\n" * 1000)


def saying(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


PATIENT = replace(FAST, max_page_bytes=100_000)
HASTY = replace(PATIENT, timeout_s=0.1)
GZIP = {"Content_Encoding": "gzip"}


@pytest.mark.parametrize(
    ("answer", "settings", "kind"),
    [
        (hang, HASTY, "timeout"),
        (drip, HASTY, "timeout"),
        (endless, PATIENT, "too_large"),
        (saying(b"m 1\n" * 30_000), PATIENT, "too_large"),
        (saying(gzip.compress(bytes(50_000_000)), **GZIP), PATIENT, "too_large"),
        (saying(b"not packed", **GZIP), PATIENT, "encoding"),
        (saying(gzip.compress(PAGE.encode())[:-9], **GZIP), PATIENT, "encoding"),
        (saying(b"?", Content_Encoding="br"), PATIENT, "encoding"),
        (saying(PAGE.encode(), 500), PATIENT, "status"),
        (saying(PAGE.encode(), 404), PATIENT, "status"),
        (saying(PAGE.encode(), 204), PATIENT, "status"),
        (saying(b"<html>\n<body>Welcome</body>\n"), PATIENT, "not_metrics"),
        (saying(bytes(range(256))), PATIENT, "not_metrics"),
        (saying(b""), PATIENT, "not_metrics"),
        (saying(b"sglang:num_queue_reqs 3\n"), PATIENT, "no_engine_metrics"),
        (saying(b"vllm:num_requests_running many\n"), PATIENT, "no_engine_metrics"),
    ],
)
async def test_a_page_that_cannot_be_used_is_counted_by_kind_and_stays_unknown(
    answer: Answer, settings: ScrapeSettings, kind: str
) -> None:
    async with lab(settings) as at:
        await at.serve("a", answer)
        await at.scraped("a", 2)
        assert set(at.errors) == {kind}
        assert at.stats("a").last_error == kind
        assert (at.stats("a").last_error_text or "").startswith(f"{kind}: ")
        assert at.stats("a").consecutive_failures >= 2
        assert at.signals("a") is UNKNOWN_SIGNALS


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nvllm:num_requests_running 1\n", "protocol"),
        (b"", "connection"),
    ],
)
async def test_a_server_that_does_not_keep_to_http_is_counted_by_kind(answer: bytes, kind: str) -> None:
    async with lab() as at:
        await at.serve_raw("a", answer)
        await at.scraped("a", 2)
        assert set(at.errors) == {kind}
        assert at.signals("a") is UNKNOWN_SIGNALS


async def test_a_refused_connection_is_counted_as_such() -> None:
    async with lab() as at:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        at.add("a", port)
        await at.scraped("a")
        assert set(at.errors) == {"connection"}


async def test_a_packed_bomb_is_never_unpacked_in_whole() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    async with lab(PATIENT) as at:
        tracemalloc.start()
        try:
            await at.serve("a", saying(bomb, **GZIP))
            await at.scraped("a")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 10_000_000


async def test_redirects_are_not_followed() -> None:
    visited: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        visited.append(request.path)
        return web.Response(text=PAGE)

    async with lab() as at:
        target = await at.serve("target", elsewhere)
        await at.scraped("target")
        at.remove("target")
        await until(lambda: connections(target) == 0)
        visited.clear()
        await at.serve("a", saying(b"", 302, Location=str(target.make_url("/metrics"))))
        await at.scraped("a", 2)
        assert set(at.errors) == {"redirect"}
        assert not visited


async def test_a_packed_page_within_bounds_is_read() -> None:
    async with lab() as at:
        await at.serve("a", saying(gzip.compress(PAGE.encode()), **GZIP))
        await until(lambda: at.signals("a").running_requests == 4.0)


async def test_failures_keep_the_last_values_and_their_age_and_make_one_line_per_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = False

    async def moody(_: web.Request) -> web.Response:
        return web.Response(status=503) if broken else web.Response(text=PAGE)

    caplog.set_level(logging.INFO, "epp")
    async with lab() as at:
        await at.serve("a", moody)
        await at.scraped("a", 2)
        assert not caplog.messages
        broken = True
        await until(lambda: at.stats("a").failing)
        last = at.signals("a")
        assert last.running_requests == 4.0
        await at.scraped("a", 3)
        assert at.signals("a") is last
        broken = False
        await until(lambda: at.stats("a").consecutive_failures == 0)
        assert at.signals("a") is not last
        assert at.stats("a").failures == sum(at.errors.values()) > FAILING_AFTER
        await at.scraped("a", 2)
        assert [(r.levelname, "default/a" in r.getMessage()) for r in caplog.records] == [
            ("WARNING", True),
            ("INFO", True),
        ]
        assert "status: HTTP 503" in caplog.messages[0]


async def test_a_single_failure_now_and_then_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def shaky(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=503) if asked % 4 == 0 else web.Response(text=PAGE)

    caplog.set_level(logging.INFO, "epp")
    async with lab() as at:
        await at.serve("a", shaky)
        await until(lambda: at.errors[ScrapeErrorKind.STATUS] >= 3)
        assert not caplog.messages


async def test_a_page_of_another_engine_is_hinted_at_once_and_a_label_mends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with lab() as at:
        page = b"sglang:num_queue_reqs 3\nsglang:num_running_reqs 1\nsglang:token_usage 0.25\n"
        server = await at.serve("a", saying(page))
        await at.scraped("a", 2)
        hints = [m for m in caplog.messages if "llm-d.ai/engine-type" in m]
        assert len(hints) == 1
        assert "vllm:num_requests_waiting" in hints[0]
        assert server.port is not None
        at.add("a", server.port, **{"llm-d.ai/engine-type": "sglang"})
        await until(lambda: at.signals("a").waiting_requests == 3.0)


async def test_one_metric_that_is_missing_is_unknown_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with lab() as at:
        await at.serve("a", saying(b"vllm:num_requests_running 4\nvllm:num_requests_waiting 1\n"))
        await at.scraped("a", 3)
        assert at.signals("a").running_requests == 4.0
        assert at.signals("a").kv_cache_usage_ratio is None
        assert not at.errors
        assert ["vllm:kv_cache_usage_perc" in m for m in caplog.messages] == [True]


def connections(server: TestServer) -> int:
    assert server.runner.server is not None
    return len(server.runner.server.connections)


async def test_an_endpoint_keeps_one_connection_for_as_long_as_it_lives() -> None:
    peers: set[object] = set()

    async def note(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(text=PAGE)

    async with lab() as at:
        server = await at.serve("a", note)
        await at.scraped("a", 5)
        assert len(peers) == 1
        at.remove("a")
        assert at.scraper.stats == {}
        await until(lambda: connections(server) == 0)
        asked = len(peers)
        at.put(Endpoint("default", "a", "127.0.0.1", server.port or 0))
        assert at.signals("a") is UNKNOWN_SIGNALS
        await until(lambda: len(peers) > asked)


async def test_a_port_that_changes_is_followed() -> None:
    async with lab() as at:
        first = await at.serve("a", answer_page)
        await at.scraped("a")
        second = await at.serve("a", saying(PAGE.replace("4.0", "9.0").encode()))
        assert at.signals("a") is UNKNOWN_SIGNALS
        await until(lambda: at.signals("a").running_requests == 9.0)
        await until(lambda: connections(first) == 0)
        assert connections(second) == 1


async def test_churn_leaves_no_task_and_no_socket_behind() -> None:
    async with lab() as at:
        server = await at.serve("a", answer_page)
        await at.scraped("a")
        idle = len(asyncio.all_tasks())
        kept = at.endpoints["a"]
        for _ in range(5):
            many = [replace(kept, name=f"pod-{n}", host=f"127.0.1.{n + 1}", metrics_host=kept.host) for n in range(40)]
            at.store.replace([kept, *many])
            await until(lambda: all(s.scrapes for s in at.scraper.stats.values()))
            assert connections(server) == 41
            at.store.replace([kept])
        await until(lambda: connections(server) == 1)
        await until(lambda: len(asyncio.all_tasks()) == idle)


async def test_cancelling_closes_everything() -> None:
    store = PoolStore()
    app = web.Application()
    app.router.add_get("/metrics", hang)
    async with TestServer(app, host="127.0.0.1") as server:
        clock = asyncio.get_running_loop().time
        scraper = Scraper(store, FAST, Engines(), tuple, clock, random.Random(7), lambda kind: None)
        before = asyncio.all_tasks()
        run = asyncio.create_task(scraper.run())
        store.replace([Endpoint("default", "a", "127.0.0.1", server.port or 0)])
        await until(lambda: connections(server) == 1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await until(lambda: connections(server) == 0)
        await until(lambda: asyncio.all_tasks() <= before)
        store.replace([])  # nobody listens any more


def self_signed(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "model-server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "tls.crt", directory / "tls.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


@pytest.mark.parametrize(
    ("skip_verify", "trusted", "works"), [(True, False, True), (False, True, True), (False, False, False)]
)
async def test_certificates_are_checked_when_asked(
    tmp_path: Path, skip_verify: bool, trusted: bool, works: bool
) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    settings = replace(
        FAST, scheme="https", insecure_skip_verify=skip_verify, ca_cert_path=str(certificate) if trusted else ""
    )
    async with lab(settings) as at:
        await at.serve("a", answer_page, context)
        await at.scraped("a")
        assert set(at.errors) == (set() if works else {"tls"})


@pytest.mark.parametrize("field", ["ca_cert_path", "client_cert_path"])
def test_a_certificate_that_cannot_be_loaded_is_named(tmp_path: Path, field: str) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    for path in (garbage, tmp_path / "absent.pem"):
        with pytest.raises(ValueError, match="cannot be loaded") as raised:
            ScrapeSettings(scheme="https", **{field: str(path)}).ssl_context()
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_page_is_where_endpoint_and_settings_say() -> None:
    six = Endpoint("default", "a", "fd00::10", 8000)
    assert str(ScrapeSettings().url(six)) == "http://[fd00::10]:8000/metrics"
    assert str(ScrapeSettings(port=9000, path="/m?x=1").url(six)) == "http://[fd00::10]:9000/m?x=1"
    apart = replace(six, metrics_host="metrics.example", metrics_port=9100)
    assert str(ScrapeSettings(scheme="https", port=9000).url(apart)) == "https://metrics.example:9100/metrics"


class Abrupt(Pace):
    """Whoever is quiet once rests for good."""

    def rest_s(self, quiet_readings: int, failures: int, census: Census) -> float:
        return 3600.0 if quiet_readings else 0.01


RESTFUL = ScrapeSettings(pace=Abrupt(0.01), timeout_s=30.0)
IDLE = PAGE.replace("4.0", "0.0").replace("20.0", "0.0").encode()


async def at_rest(at: Lab, name: str) -> EndpointSignals:
    await until(lambda: at.signals(name).current_until_s is not None)
    return at.signals(name)


async def test_an_idle_server_rests_and_a_request_that_is_sent_there_ends_its_rest() -> None:
    now = asyncio.get_running_loop().time
    async with lab(RESTFUL) as at:
        await at.serve("a", saying(IDLE))
        await at.serve("b", saying(IDLE))
        before, scrapes = await at_rest(at, "a"), at.stats("a").scrapes
        await at_rest(at, "b")
        assert at.store.snapshot().is_fresh(now() + 1000.0, 2.0).tolist() == [True, True]
        assert at.store.snapshot().age_s(now() + 1000.0).min() > 999.0
        at.in_flight.add("default/a")
        await at.scraped("a", 5)
        assert at.signals("a") != before
        assert at.stats("b").scrapes == scrapes == 2
        assert at.store.snapshot().is_fresh(now() + 1000.0, 2.0).tolist() == [False, True]
        at.in_flight.clear()
        await at_rest(at, "a")


async def test_what_is_known_of_a_resting_server_is_not_current_once_a_request_is_there() -> None:
    now = asyncio.get_running_loop().time
    asked = 0

    async def hang_later(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(body=IDLE) if asked <= 2 else await hang(request)

    async with lab(RESTFUL) as at:
        await at.serve("a", hang_later)
        await at_rest(at, "a")
        at.in_flight.add("default/a")
        await until(lambda: asked == 3)
        assert not at.store.snapshot().is_fresh(now() + 10.0, 2.0)[0]


async def test_a_server_at_work_is_read_on_though_nothing_of_ours_is_there() -> None:
    async with lab(RESTFUL) as at:
        await at.serve("running", answer_page)
        await at.scraped("running", 5)


async def test_work_that_came_and_went_between_two_readings_shows_in_the_totals() -> None:
    tokens = 0

    async def busy_elsewhere(_: web.Request) -> web.Response:
        nonlocal tokens
        tokens += 10
        return web.Response(body=IDLE + b"vllm:generation_tokens_total %d\n" % min(tokens, 80))

    async with lab(RESTFUL) as at:
        await at.serve("a", busy_elsewhere)
        await at_rest(at, "a")
        assert tokens == 90


@dataclass
class RawServer:
    """Answers on a connection `answers` times; then it closes it as soon as it is asked again."""

    answers: int
    connections: int = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self.answers):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE.encode()))
        await reader.read(1)
        writer.close()


async def read_from_a_server_that_hangs_up() -> None:
    raw = RawServer(answers=3)
    server = await asyncio.start_server(raw.talk, "127.0.0.1", 0)
    async with lab() as at, server:
        at.add("a", server.sockets[0].getsockname()[1])
        await at.scraped("a", 10)
        assert not at.errors
        assert raw.connections >= 3


async def test_a_connection_that_closes_when_asked_again_is_no_failure() -> None:
    await read_from_a_server_that_hangs_up()


def test_the_same_on_the_event_loop_that_serves() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(read_from_a_server_that_hangs_up())


async def test_bytes_that_nobody_asked_for_end_the_connection_and_are_not_read() -> None:
    lie = PAGE.replace("4.0", "9.0").encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer % len(PAGE) + PAGE.encode() + answer % len(lie) + lie)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with lab() as at, server:
        at.add("a", server.sockets[0].getsockname()[1])
        for _ in range(4):
            await at.scraped("a")
            assert at.signals("a").running_requests == 4.0
        assert connections >= 4
