"""A long load on pickers behind the real Envoy: `python tests/soak/run.py [--seconds S] [--streams N] …`.

For each transport: waves of N long streams at once, with short requests in between, a third of which leave early. Then
requests at a steady pace to two pickers, one of which is told to stop, or is killed, failing open and closed. Prints
the figures, and exits with 1 if a request was lost that must not be, or if anything is left of the load afterwards.

N streams take 2 N file descriptors here and in Envoy: `ulimit -n` must allow for them.
"""

import argparse
import asyncio
import logging
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "envoy"), str(HERE.parent), str(HERE.parent.parent)]

from load import Answers, Footprint, Site, load, metrics_of  # noqa: E402

MEBIBYTE = 2**20
WARM_UP_STREAMS = 50
SHORT_PER_S = 10
# From the first wave on, later waves may add this much for good.
GROWTH_BYTES = 24 * MEBIBYTE
LOST_WITH_A_KILLED_PICKER = 10


class Broken(Exception):
    """A promise that did not hold."""


def demand(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


async def cpu_s(site: Site) -> float:
    return (await metrics_of(site.pickers[0])).total("process_cpu_seconds_total")


async def resident_bytes(site: Site) -> int:
    return int((await metrics_of(site.pickers[0])).total("process_resident_memory_bytes"))


async def wave(site: Site, streams: int, hold_s: float) -> tuple[int, Answers]:
    """Open all streams, hold them, end them, a third by the client. Returns the peak of memory and short answers."""
    opened = await site.open_streams(streams)
    page = await metrics_of(site.pickers[0])
    demand(page.total("llm_d_epp_inflight_requests") == streams, "every open stream is reserved, and no other")
    short, until_s = Answers(), time.monotonic() + hold_s
    while time.monotonic() < until_s:
        await site.ask(short, "GET")
        await asyncio.sleep(1 / SHORT_PER_S)
    peak_bytes = await resident_bytes(site)
    for response in opened[::3]:
        response.close()
    await site.finish([response for response in opened if not response.closed])
    return peak_bytes, short


async def swamped(transport: str, streams: int, seconds: float) -> None:
    flags = ["--transport", transport]
    async with load(behaviours=["ticks"] * 3, flags=flags) as site:
        (picker,) = site.pickers
        await site.finish(await site.open_streams(WARM_UP_STREAMS))
        before = await site.footprint(picker)
        after_each: list[Footprint] = []
        started_s, hold_s = time.monotonic(), min(20.0, seconds / 4)
        while not after_each or time.monotonic() - started_s < seconds:
            began_s, cpu_before_s = time.monotonic(), await cpu_s(site)
            peak_bytes, short = await wave(site, streams, hold_s)
            demand(short.failed == [], f"short requests are served meanwhile: {short.failed[:3]}")
            after = await site.footprint(picker)
            after_each.append(after)
            row(
                transport,
                len(after_each),
                streams,
                short.served,
                f"{time.monotonic() - began_s:.0f} s",
                f"{await cpu_s(site) - cpu_before_s:.1f} s",
                *(f"{n / MEBIBYTE:.0f} MiB" for n in (before.resident_bytes, peak_bytes, after.resident_bytes)),
                f"{before.tasks} → {after.tasks}",
            )
            demand(after.tasks <= before.tasks, "no task is left of a wave")
        growth_bytes = after_each[-1].resident_bytes - after_each[0].resident_bytes
        demand(growth_bytes <= GROWTH_BYTES, f"waves do not add up: {growth_bytes} bytes more after the last")


async def one_of_two_ends(how: signal.Signals, fail_open: bool, per_s: float, seconds: float) -> None:
    # Only what a picker is being asked when it is killed has no answer, and is not served if Envoy fails closed.
    may_fail = LOST_WITH_A_KILLED_PICKER if how is signal.SIGKILL and not fail_open else 0
    async with load(pickers=2, fail_open=fail_open, health_interval_s=1.0, flags=["--drain-timeout", "4s"]) as site:
        ending, staying = site.pickers
        async with site.paced(per_s) as answers:
            await asyncio.sleep(seconds / 3)
            await ending.signal(how)
            await ending.wait()
            await asyncio.sleep(seconds / 3)
        picked = (await site.idle(staying)).total("llm_d_epp_request_total")
        row(
            how.name,
            f"{per_s:g}/s",
            "open" if fail_open else "closed",
            answers.served,
            len(answers.failed),
            int(picked),
        )
        demand(len(answers.failed) <= may_fail, f"no request is lost: {answers.failed[:3]}")


async def soak(seconds: float, streams: int, per_s: float, transports: Sequence[str]) -> None:
    row("transport", "wave", "streams", "short", "took", "CPU", "before", "peak", "after", "tasks")
    row(*["---"] * 10)
    for transport in transports:
        await swamped(transport, streams, seconds * 2 / 3 / len(transports))
    print()
    row("signal", "pace", "failing", "served", "failed", "picked by the other")
    row(*["---"] * 6)
    for how, fail_open in ((signal.SIGTERM, False), (signal.SIGKILL, True), (signal.SIGKILL, False)):
        await one_of_two_ends(how, fail_open, per_s, seconds / 9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0, help="about how long")
    parser.add_argument("--streams", type=int, default=3000, help="long streams at once")
    parser.add_argument("--per-second", type=float, default=100.0, help="requests to two pickers")
    parser.add_argument("--transport", action="append", choices=["grpc", "lean"], help="both unless given")
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it reports every client that leaves
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(soak(args.seconds, args.streams, args.per_second, args.transport or ["grpc", "lean"]))
    except Broken as broken:
        print(f"BROKEN: {broken}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
