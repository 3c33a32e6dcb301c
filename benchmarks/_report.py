"""What every benchmark shares: the machine it ran on, CPU time, rounds that alternate, a table and a JSON file.

    taken = medians({"grpc": one_run, "lean": another}, rounds=5)       # name -> Figure, measured in turns
    print(heading())
    print(table([{"transport": name, "µs": f"{figure.median:.1f}"} for name, figure in taken.items()]))
    write({"transports": {name: figure.as_json() for name, figure in taken.items()}}, arguments.json)

Figures of different machines do not compare. Those of one run do, so whatever is to be compared takes turns in it.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from epp.compiled import build_in_words

Name = TypeVar("Name", bound=Hashable)


def progress_to_stderr() -> Callable[[str], None]:
    """Says what is being done, with the seconds since this was called."""
    started_s = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - started_s:5.0f} s] {text}", file=sys.stderr, flush=True)

    return progress


# --- the machine ------------------------------------------------------------------------------------------------------


def machine(*packages: str) -> dict[str, Any]:
    """What the figures depend on, read now.

    Args:
        packages: distributions whose versions matter.
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_1_min": round(os.getloadavg()[0], 2),
        **{package: version(package) for package in packages},
    }


def heading(*packages: str) -> str:
    """`machine` in one line, to stand above a table."""
    return ", ".join(f"{key} {value}" for key, value in machine(*packages).items())


def _cpu_model() -> str:
    try:
        match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


# --- CPU time ---------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, over its living threads.

    From the scheduler's own account in nanoseconds; `utime` and `stime` count in ticks of 10 ms. Raises
    `FileNotFoundError` if there is no such process.
    """
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            continue
    return total_ns / 1e9


# --- rounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over some rounds.

    Attributes:
        median: what to quote.
        best: the lowest, which other load on the machine disturbed least.
    """

    median: float
    best: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        return cls(statistics.median(values), min(values), len(values))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "best": self.best, "rounds": self.rounds}

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.best:.1f})"


def medians(runs: Mapping[Name, Callable[[], float]], rounds: int) -> dict[Name, Figure]:
    """Measure each in turn, so many rounds, so that a slow minute of the machine strikes all of them."""
    taken: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(run())
    return {name: Figure.of(values) for name, values in taken.items()}


# --- what comes out ---------------------------------------------------------------------------------------------------


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")


def add_python_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", metavar="EXE", help="of the installation whose picker is to be measured (make compiled)"
    )


def build_of(python: str | None) -> str:
    """How the picker of that installation was built, in words; `None`: of this one."""
    if python is None:
        return build_in_words()
    script = "from epp.compiled import build_in_words; print(build_in_words())"
    return subprocess.run([python, "-P", "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def write(results: Mapping[str, Any], path: Path | None, *packages: str) -> None:
    """Write the results and the machine as JSON; nothing without a path."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(*packages), **results}, indent=2) + "\n")


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a Markdown table that also reads well as text. Columns are those of the first row; numbers stand right.

    A float is shown with three significant digits; format it yourself for anything else. `None` is shown as –.
    """
    if not rows:
        return ""
    names = list(rows[0])
    cells = [[_shown(row.get(name)) for name in names] for row in rows]
    right = [all(isinstance(row.get(name), int | float | Figure | None) for row in rows) for name in names]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if r else text.ljust(width) for text, width, r in zip(texts, widths, right, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True))
    return "\n".join([line(names), f"|{rule}|", *map(line, cells)])


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
