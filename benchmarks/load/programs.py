"""The two C programs: compiled when first used, started, and what they report.

    with Upstream() as upstream:
        result = run_load(Load(port=upstream.port, connections=8, seconds=1.0))

Python does not make the load: on a machine with two cores it would measure itself. `load.c` and `upstream.c` say what
their options mean; the fields here have the same names.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from epp.problem import Problem

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER / ".build"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
_GRACE_S = 30.0


class LoadError(Problem):
    """There is no compiler, or a program or the requests that it sent failed."""


def compiler() -> list[str]:
    """`$CC`, with its flags, or `cc`; empty: there is none. Raises `LoadError` if `$CC` is no command line."""
    wanted = os.environ.get("CC", "")
    try:
        command = shlex.split(wanted) or ["cc"]
    except ValueError as error:
        raise LoadError(f"$CC is {wanted!r}, which no shell could read: {error}; mend it, or unset it") from error
    return command if shutil.which(command[0]) else []


def compiled(name: str) -> Path:
    """The executable of `load` or `upstream`, made anew when its source or `$CC` has changed. Raises `LoadError`."""
    sources = [FOLDER / f"{name}.c", FOLDER / "common.h"]
    made_of = b"".join([*(source.read_bytes() for source in sources), os.environ.get("CC", "").encode()])
    digest = hashlib.sha256(made_of).hexdigest()[:16]
    program = BUILD / f"{name}-{digest}"
    if program.exists():
        return program
    command = compiler()
    if not command:
        raise LoadError("the load generator is written in C and there is no C compiler; try: apt-get install gcc")
    BUILD.mkdir(exist_ok=True)
    draft = program.with_suffix(f".{os.getpid()}")
    made = subprocess.run([*command, *FLAGS, "-o", draft, sources[0]], capture_output=True, text=True)
    if made.returncode:
        raise LoadError(f"{sources[0]} does not compile:\n{made.stderr[-2000:]}")
    for old in BUILD.glob(f"{name}-*"):  # of other sources; one that runs goes on
        if not old.suffix:  # nor is a draft of another process
            old.unlink(missing_ok=True)
    draft.replace(program)
    return program


# --- the model servers ------------------------------------------------------------------------------------------------


class Upstream:
    """Many model servers in one process, one per address of loopback; a context manager.

    Attributes:
        port: of every one of them.
        pid: of the process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([compiled("upstream")], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__(None, None, None)
            raise LoadError("the upstream program did not start")
        self.port = json.loads(line)["port"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def addresses(self, count: int) -> list[str]:
        """`host:port` of so many servers: 127.1.0.1, 127.1.0.2, …"""
        return [f"127.1.{i // 250}.{i % 250 + 1}:{self.port}" for i in range(count)]


# --- the clients ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent; see `load.c`.

    Attributes:
        rate: requests/s of an open loop; 0 is a closed loop.
        requests: stop after so many; 0 is no limit.
        ramp_s: over which the connections of a closed loop begin, so that long answers do not end in waves.
        shared_bytes, groups: the prefix that requests of one group have in common.
        max_tokens: of each answer.
        stream: 0 for a JSON answer.
        first_gap_us: between the first two events of a streamed answer.
        interval_us: between the others; 0 is as fast as they are taken.
        paced_tokens: so many come at this pace, and what is left as fast as it is taken.
        headers: more of them, `name: value`.
    """

    port: int
    host: str = "127.0.0.1"
    connections: int = 1
    seconds: float = 1.0
    warmup_s: float = 0.0
    drain_s: float = 5.0
    rate: float = 0.0
    ramp_s: float = 0.0
    requests: int = 0
    body_bytes: int = 1024
    shared_bytes: int = 0
    groups: int = 0
    max_tokens: int = 100
    stream: int = 1
    first_gap_us: int = 20_000
    interval_us: int = 0
    paced_tokens: int = 1_000_000
    headers: Sequence[str] = ()

    def arguments(self) -> list[str]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [f"{name}={';'.join(value) if name == 'headers' else value}" for name, value in values.items()]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of it. Latencies are from the scheduled time in an open loop, from sending in a closed one.

    Attributes:
        seconds: between the marks.
        completed: between the marks; so are `chunks` (HTTP chunks of answers) and `bytes`.
        total_completed, total_bytes: over the whole run.
        unfinished: not answered when the program stopped waiting.
    """

    seconds: float
    completed: int
    chunks: int
    bytes: int
    total_completed: int
    total_bytes: int
    unfinished: int
    total_p50_us: int
    total_p90_us: int
    total_p99_us: int
    first_p50_us: int
    first_p90_us: int
    first_p99_us: int


def run_load(load: Load, at_mark: Callable[[], None] = lambda: None) -> LoadResult:
    """Send it and wait for the end.

    Args:
        at_mark: called when the measured time begins and when it ends.

    Raises:
        LoadError: a request failed, or the program did, or no request was completed between the marks.
    """
    process = subprocess.Popen(
        [compiled("load"), *load.arguments()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    marks: dict[str, dict[str, Any]] = {}
    try:
        for line in process.stdout:
            mark = json.loads(line)
            marks[mark["mark"]] = mark
            if mark["mark"] != "result":
                at_mark()
        process.wait(_GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        _, complaint = process.communicate()
    if "result" not in marks or "end" not in marks:
        raise LoadError(f"the load generator ended with {process.returncode}: {complaint.strip() or 'it said nothing'}")
    result = marks["result"]
    if result["errors"]:
        raise LoadError(f"{result['errors']} of {result['started']} requests failed, the last: {result['last_error']}")
    if not result["samples"]:
        raise LoadError(f"no request was completed within {load.seconds:g} s")
    begin, end = marks["begin"], marks["end"]
    latencies = {name: result[name] for name in result if name.endswith("_us")}
    return LoadResult(
        seconds=end["at_s"] - begin["at_s"],
        completed=end["completed"] - begin["completed"],
        chunks=end["chunks"] - begin["chunks"],
        bytes=end["bytes"] - begin["bytes"],
        total_completed=result["completed"],
        total_bytes=result["bytes"],
        unfinished=result["unfinished"],
        **latencies,
    )
