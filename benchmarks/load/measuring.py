"""Who runs on which core, and what a load costs whom: CPU time of processes between two marks of the load generator."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._report import cpu_seconds
from benchmarks.load.programs import Load, LoadResult, run_load

_FULL = 1.4  # times what is answered during a pause


# --- cores ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where. With a single core all share it."""

    picker: frozenset[int]
    rest: frozenset[int]

    @classmethod
    def split(cls, for_picker: int = 1) -> "Cores":
        """The last cores that this process may use for the picker, the others for everything else."""
        usable = sorted(os.sched_getaffinity(0))
        taken = min(for_picker, max(1, len(usable) - 1))
        return cls(frozenset(usable[-taken:]), frozenset(usable[:-taken] or usable))


@contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Whatever is started within, and this thread, runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_on_sigterm() -> None:
    """Let a SIGTERM end this process as an exception, so that what it has started ends too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


# --- one measurement --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """
    Attributes:
        cpu_us: by process, per completed request.
        busy_ratio: by process, of one core.
        picker_messages, picker_bytes: what Envoy sent the picker per request; 0 without one.
    """

    result: LoadResult
    cpu_us: Mapping[str, float]
    busy_ratio: Mapping[str, float]
    picker_messages: float = 0.0
    picker_bytes: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return self.result.completed / self.result.seconds

    @property
    def chunks_per_request(self) -> float:
        return self.result.chunks / self.result.completed


def reference_ms(cores: frozenset[int]) -> float:
    """CPU time of a fixed piece of Python there, now: what the machine's own speed is just then.

    Virtual machines swing by a factor of two within minutes; figures taken at another reference do not compare.
    """
    with pinned(cores):
        started_s = time.thread_time()
        known = {number: number for number in range(100)}
        for number in range(100_000):
            pair = [known.get(number % 100, 0), number]
            pair.sort()
            known[number % 100] = pair[0]
        return (time.thread_time() - started_s) * 1e3


def family(pid: int) -> list[int]:
    """A process and all that it has started, and so on."""
    children: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            children += (task / "children").read_text().split()
    return [pid, *(found for child in children for found in family(int(child)))]


def measure(load: Load, processes: Mapping[str, Sequence[int]]) -> Sample:
    """Send the load and see what it costs whom.

    Args:
        processes: pids by name; those of one name are summed.

    Raises:
        LoadError: a request failed, or none was completed.
    """
    readings: list[dict[str, float]] = []

    def read() -> None:
        readings.append({name: sum(map(cpu_seconds, pids)) for name, pids in processes.items()})

    result = run_load(load, read)
    spent = {name: readings[1][name] - readings[0][name] for name in processes}
    return Sample(
        result,
        {name: cpu_s / result.completed * 1e6 for name, cpu_s in spent.items()},
        {name: cpu_s / result.seconds for name, cpu_s in spent.items()},
    )


def filling(load: Load, send: Callable[[Load], Sample]) -> Load:
    """A closed loop of unpaced streams with so many connections that what it is sent to is full, but not much more.

    With too many, answers queue for longer than the pause after their first token: then the tokens behind it catch up
    with it, and nobody sees it come alone, as it would from a GPU.

    Args:
        send: where it will be sent; tried with a few hundred requests, without pauses.
    """
    tried = send(replace(load, first_gap_us=0, connections=32, requests=300, seconds=6.0, warmup_s=0.0))
    pause_s = load.first_gap_us / 1e6
    in_flight = round(_FULL * tried.requests_per_s * pause_s)
    return replace(load, connections=min(max(in_flight, 16), 4_000), ramp_s=pause_s, warmup_s=0.5 + 2 * pause_s)
