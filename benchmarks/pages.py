"""What the picker's own pages cost requests: how long decisions take while a page is read, and while none is.

    python -m benchmarks.pages [--seconds 5] [--endpoints 100] [--profile headroom] [--workers 1] [--json FILE]

A picker of its own process has seen so many models that every bound on labels is met, so `/metrics` is as long as it
gets. Then requests come at an even rate, each with a stream of its own, and pages are read one after the other, by a
third process. A decision's time is from when the request was to be sent until its route is there, so that a picker that
does something else shows in all the requests that it let wait. `page s` is how long a page took.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
import uvloop
from grpc import aio

from benchmarks import _envoy as envoy
from benchmarks import _report
from epp.config.builtins import BUILT_INS, DEFAULT_BUILT_IN
from epp.server.transport import METHOD
from epp.sim.picker_process import PickerProcess

MODELS = 600  # more than label sets of both kinds
GZIP = "gzip"
PAGES = (
    (None, None),
    ("/metrics", None),
    ("/metrics", GZIP),
    ("/debug/state", None),
    ("/debug/state?decisions=3", None),
    ("/debug/plugins/state", None),
)
AT_ONCE = 16  # requests while the labels are filled

# Reads a page over and over until it is killed, and says of each how long it took and how long it is.
READER = """
import sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": sys.argv[2]})
while True:
    began_s = time.monotonic()
    with urllib.request.urlopen(request) as answer:
        size = len(answer.read())
    print(time.monotonic() - began_s, size, flush=True)
    time.sleep(0.1)
"""


@dataclass(frozen=True, slots=True)
class Waits:
    """
    Attributes:
        page: that was read all the while; `None`: none.
        p50_ms, p99_ms, most_ms: of decisions.
        page_s, page_bytes: of the pages that were read, the median; `None`: none came to its end.
    """

    page: str | None
    requests: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    page_s: float | None
    page_bytes: int | None


class Envoy:
    """Sends requests as Envoy does with the recommended bootstrap."""

    def __init__(self, port: int) -> None:
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.stream_stream(METHOD)
        self._number = 0

    async def request(self, due_s: float) -> float:
        """One, to its end. Returns the ms from `due_s` to its route."""
        self._number += 1
        text = f"request {self._number} " + "lorem ipsum dolor sit amet " * 30
        body = orjson.dumps(
            {
                "model": f"model-{self._number % MODELS}",
                "stream": True,
                "messages": [{"role": "user", "content": text}],
            }
        )
        stream = self._call()
        opening = [envoy.request_headers(envoy.RECOMMENDED, self._number), *envoy.request_body(envoy.RECOMMENDED, body)]
        for message in opening:
            await stream.write(message)
            await stream.read()
        took_ms = (time.monotonic() - due_s) * 1e3
        for message in (envoy.response_headers(), envoy.response_chunk(end=True)):
            await stream.write(message)
            await stream.read()
        await stream.done_writing()
        await stream.read()
        return took_ms

    async def fill(self) -> None:
        for _ in range(2 * MODELS // AT_ONCE):
            await asyncio.gather(*(self.request(time.monotonic()) for _ in range(AT_ONCE)))

    async def send(self, seconds: float, rate: float) -> list[float]:
        """So many requests per second, whatever becomes of those before."""
        began_s, sent = time.monotonic(), []
        for number in range(int(seconds * rate)):
            due_s = began_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            sent.append(asyncio.create_task(self.request(due_s)))
        return await asyncio.gather(*sent)

    async def close(self) -> None:
        await self._channel.close()


@contextmanager
def _reader(url: str, coding: str | None) -> Iterator[list[str]]:
    """Yields a list that holds, once it is left, a line for each page."""
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", READER, url, coding or "identity"], stdout=subprocess.PIPE, text=True
    ) as child:
        yield lines
        child.kill()
        assert child.stdout is not None
        lines += child.stdout.readlines()


async def _measure(
    picker: PickerProcess, sender: Envoy, page: str | None, coding: str | None, seconds: float, rate: float
) -> Waits:
    if page is None:
        taken, pages = await sender.send(seconds, rate), []
    else:
        with _reader(picker.metrics_url + page, coding) as lines:
            taken = await sender.send(seconds, rate)
        pages = [(float(took), int(size)) for took, size in map(str.split, lines)]
    p50_ms, p99_ms, most_ms = np.percentile(taken, [50, 99, 100])
    name = page if coding is None else f"{page}, {coding}"
    page_s, page_bytes = np.median(pages, axis=0) if pages else (None, None)
    return Waits(
        name,
        len(taken),
        float(p50_ms),
        float(p99_ms),
        float(most_ms),
        None if page_s is None else float(page_s),
        None if page_bytes is None else int(page_bytes),
    )


async def measure(profile: str, endpoints: int, workers: int, seconds: float, rate: float) -> list[Waits]:
    progress = _report.progress_to_stderr()
    addresses = ",".join(
        f"127.1.{i // 250}.{i % 250 + 1}:9" for i in range(endpoints)
    )  # nobody is there: none is asked
    flags = ["--endpoints", addresses, "--profile", profile, "--secure-serving=false", "--workers", str(workers)]
    with tempfile.TemporaryDirectory() as folder:
        async with PickerProcess(Path(folder), flags) as picker:
            sender = Envoy(picker.ports["grpc"])
            progress(f"{MODELS} models …")
            await sender.fill()
            taken = []
            for page, coding in PAGES:
                progress(f"{page or 'no page'} {coding or ''} …")
                taken.append(await _measure(picker, sender, page, coding, seconds, rate))
            await sender.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="each measurement (default: 5)")
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second (default: 50)")
    parser.add_argument("--endpoints", type=int, default=100, help="of the pool (default: 100)")
    parser.add_argument("--workers", type=int, default=1, help="processes that decide (default: 1)")
    parser.add_argument("--profile", choices=list(BUILT_INS), default=DEFAULT_BUILT_IN)
    _report.add_json_option(parser)
    options = parser.parse_args()
    waits = uvloop.run(measure(options.profile, options.endpoints, options.workers, options.seconds, options.rate))
    print(_report.heading("prometheus-client", "aiohttp"))
    print(
        _report.table(
            [
                {
                    "page": of.page or "none",
                    "requests": of.requests,
                    "p50 ms": of.p50_ms,
                    "p99 ms": of.p99_ms,
                    "most ms": of.most_ms,
                    "page s": of.page_s,
                    "page MB": None if of.page_bytes is None else of.page_bytes / 1e6,
                }
                for of in waits
            ]
        )
    )
    _report.write({"pages": [asdict(of) for of in waits]}, options.json, "prometheus-client", "aiohttp")


if __name__ == "__main__":
    main()
