"""What it costs to know a pool: CPU of a picker that only reads metrics pages, idle and busy pools of several sizes.

    python -m benchmarks.scrape [--seconds 5] [--endpoints 10,100,1000] [--json FILE]

The pages are vLLM's: some 600 lines, 60 KB; asked for families by name, the server writes only these, as vLLM does. A
child process serves them as fast as it can; its CPU is not counted. In an idle pool no page ever changes. In a busy one
every page tells of work and no two that follow each other are alike. `whole` is a busy pool of servers that always
write whole pages. All is at the defaults. The figure is user and system time of this process, whatever it is spent on:
connections, HTTP, reading, and a snapshot of the pool a hundred times a second, as a hundred decisions would take.
A wake-up of an idle process alone costs some 50 to 100 µs, so small pools look dear by the reading.

`seen after` is how long after a request was sent to a server that rested the first page is there that was asked for
since, in ms; the median.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import cast
from urllib.parse import parse_qs

import uvloop

from benchmarks import _report
from epp.pool.endpoint import Endpoint
from epp.pool.store import PoolStore
from epp.signals.engines import Engines
from epp.signals.errors import ScrapeErrorKind
from epp.signals.scraper import Scraper
from epp.signals.settings import ScrapeSettings

KINDS = ("idle", "busy", "whole")
SETTLE_S = 6.0  # an idle pool comes to rest
SNAPSHOTS_PER_S = 100
WAKES = 20
# What an idle pool may cost, in cores.
TARGET_CORES = {100: 0.1, 1000: 0.5}

_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
)


def page(number: int, *, busy: bool) -> bytes:
    """A page of vLLM's with as many lines as its own; of a busy server one that is unlike the others."""
    series = '{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
    lines: list[str] = []

    def family(name: str, kind: str, text: str) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))

    def gauge(name: str, value: float, labels: str = series + "}") -> None:
        family(name, "gauge", "A number that the engine keeps, and what it means in a sentence.")
        lines.append(f"{name}{labels} {value}")

    gauge("process_start_time_seconds", 1.79598267175e9, "")
    gauge("process_cpu_seconds_total", 13.62 + number, "")
    gauge("vllm:num_requests_running", 1.0 + number % 64 if busy else 0.0)
    gauge("vllm:num_requests_waiting", number % 5 if busy else 0.0)
    gauge("vllm:kv_cache_usage_perc", number % 97 / 100 if busy else 0.0)
    gauge("vllm:prompt_tokens_total", 1e6 + 512 * number * busy)
    gauge("vllm:generation_tokens_total", 1e6 + 64 * number * busy)
    for name in _HISTOGRAMS:
        family(f"vllm:{name}", "histogram", "How often the engine saw a value no greater than each of these bounds.")
        lines.extend(f'vllm:{name}_bucket{series},le="{2.0**i}"}} {number + 1000.0}' for i in range(28))
        lines.extend((f"vllm:{name}_count{series}}} {number + 1000.0}", f"vllm:{name}_sum{series}}} {number * 3.7}"))
    gauge("vllm:cache_config_info", 1.0, '{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27000"}')
    return ("\n".join(lines) + "\n").encode()


# --- the other process ------------------------------------------------------------------------------------------------


class _Answers:
    """What a server of one kind says, page after page."""

    def __init__(self, kind: str) -> None:
        self._takes_names = kind != "whole"
        self._pages = [page(number, busy=kind != "idle") for number in range(1 if kind == "idle" else 32)]
        self._numbers = itertools.cycle(range(len(self._pages)))
        self._made: dict[tuple[bytes, int], bytes] = {}

    def to(self, request: bytes) -> bytes:
        query = request.split(b" ", 2)[1].partition(b"?")[2] if self._takes_names else b""
        key = query, next(self._numbers)
        if key not in self._made:
            text = self._pages[key[1]]
            names = tuple(name.encode() for name in parse_qs(query.decode()).get("name[]", []))
            if names:
                text = b"".join(
                    line
                    for line in text.splitlines(keepends=True)
                    if line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(names)
                )
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n"
            self._made[key] = head % len(text) + text
        return self._made[key]


class _Server(asyncio.Protocol):
    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answers.to(data))  # a request of ours is one segment


async def _serve(kind: str) -> None:
    answers, loop = _Answers(kind), asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(answers), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent ends, however it does


@contextmanager
def _served(kind: str) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.scrape", "--serve", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.stdin.close()


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one pool.

    Attributes:
        cores: CPU seconds per second.
        us_per_reading: all of the CPU time, for each reading.
        failed: readings that did, since the pool was made: more than a few, and the figures mean nothing.
        oldest_s: age of the oldest signals when the measurement ended.
        seen_after_ms: see the module's text; `None` unless the pool is idle.
    """

    pool: str
    endpoints: int
    readings_per_s: float
    cores: float
    us_per_reading: float
    failed: int
    oldest_s: float
    seen_after_ms: float | None


class _Picker:
    """What a picker has of the pool."""

    def __init__(self, endpoints: int, port: int) -> None:
        self.store = PoolStore()
        self.store.replace(
            Endpoint("bench", f"server-{i}", f"127.{i >> 16}.{i >> 8 & 255}.{i & 255}", port, metrics_host="127.0.0.1")
            for i in range(1, endpoints + 1)
        )
        self.in_flight: set[str] = set()
        self.errors = 0
        self.scraper = Scraper(
            self.store, ScrapeSettings(), Engines(), self._in_flight, time.monotonic, random.Random(1), self._failed
        )

    def _in_flight(self) -> Collection[str]:
        return self.in_flight

    def _failed(self, kind: ScrapeErrorKind) -> None:
        self.errors += 1

    def readings(self) -> int:
        return sum(stats.scrapes for stats in self.scraper.stats.values())

    async def look(self) -> None:
        while True:
            snapshot = self.store.snapshot()
            snapshot.is_fresh(time.monotonic(), 2.0)
            await asyncio.sleep(1 / SNAPSHOTS_PER_S)

    async def seen_after_ms(self) -> float:
        """From a request to a server at rest until a page of it is there that was asked for since."""
        took_ms = []
        for endpoint in self.store.snapshot().endpoints[:WAKES]:
            asked_s = time.monotonic()
            self.in_flight = {endpoint.id}
            row = self.store.snapshot().row_by_id[endpoint.id]
            while self.store.snapshot().scraped_at_s[row] < asked_s:  # noqa: ASYNC110 (the store has no event for it)
                await asyncio.sleep(0.001)
            took_ms.append((time.monotonic() - asked_s) * 1e3)
            self.in_flight = set()
        return statistics.median(took_ms)


async def measure(kind: str, endpoints: int, port: int, seconds: float) -> Cost:
    picker = _Picker(endpoints, port)
    jobs = [asyncio.create_task(picker.scraper.run()), asyncio.create_task(picker.look())]
    await asyncio.sleep(SETTLE_S)
    readings, cpu_s, started_s = picker.readings(), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - started_s
    cpu_s, readings = time.process_time() - cpu_s, picker.readings() - readings
    oldest_s = float(picker.store.snapshot().age_s(time.monotonic()).max())
    seen_after_ms = await picker.seen_after_ms() if kind == "idle" else None
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    return Cost(
        kind,
        endpoints,
        readings / took_s,
        cpu_s / took_s,
        cpu_s / readings * 1e6,
        picker.errors,
        oldest_s,
        seen_after_ms,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="each measurement (default: 5)")
    parser.add_argument("--endpoints", default="10,100,1000", help="sizes of the pools (default: 10,100,1000)")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    _report.add_json_option(parser)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(_serve(options.serve))
        return
    costs: list[Cost] = []
    for kind in KINDS:
        with _served(kind) as port:
            for endpoints in map(int, options.endpoints.split(",")):
                print(f"{kind}, {endpoints} endpoints …", file=sys.stderr)
                costs.append(uvloop.run(measure(kind, endpoints, port, options.seconds)))
    print(_report.heading("httptools", "uvloop"))
    print(
        _report.table(
            [
                {
                    "pool": cost.pool,
                    "endpoints": cost.endpoints,
                    "readings/s": cost.readings_per_s,
                    "cores": cost.cores,
                    "target": TARGET_CORES.get(cost.endpoints) if cost.pool == "idle" else None,
                    "µs/reading": cost.us_per_reading,
                    "failed": cost.failed,
                    "oldest s": cost.oldest_s,
                    "seen after ms": cost.seen_after_ms,
                }
                for cost in costs
            ]
        )
    )
    _report.write({"scraping": [asdict(cost) for cost in costs]}, options.json, "httptools", "uvloop")


if __name__ == "__main__":
    main()
