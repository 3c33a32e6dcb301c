"""The wall clock steps, as it does when NTP corrects it or a machine resumes: nothing is measured by it."""

import ast
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from envoy_messages import FULL_DUPLEX, response_body
from scripted_envoy import LAST, ScriptedStream, connect, streaming
from stack import Metrics

import epp
from epp.sim.config import SimConfig
from epp.sim.picker_process import PickerProcess
from epp.sim.server import SimServer

PACKAGE = Path(epp.__file__).parent
LIBFAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DAY_S = 86_400

# What may look at the wall clock: what tells people, or peers, the time of day.
TELLS_THE_TIME_OF_DAY = {
    "observe/logs.py",  # the beginning of a line
    "server/admin.py",  # the date of a dump
    "server/state.py",  # when a recorded request came, for those who read the file
    "server/kubernetes.py",  # when a Lease was renewed, for people: nobody compares it
    "server/tls.py",  # from when to when a certificate counts
}
NO_PART_OF_PICKING = {"cli", "conformance", "predictor", "sim"}


def _wall_clock_reads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.fromtimestamp"):
                yield name
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (alias.name for alias in node.names if alias.name in ("time", "time_ns"))


def test_only_what_tells_the_time_of_day_reads_the_wall_clock():
    files = {path.relative_to(PACKAGE): path for path in PACKAGE.rglob("*.py")}
    picking = {name: path for name, path in files.items() if name.parts[0] not in NO_PART_OF_PICKING}
    readers = {name.as_posix() for name, path in picking.items() if any(_wall_clock_reads(path))}
    assert readers == TELLS_THE_TIME_OF_DAY


JUMPING = f"""#!{sys.executable}
import itertools, runpy, sys, time
real_s, days = time.time, itertools.cycle((-1, 1))
time.time = lambda: real_s() + {DAY_S} * next(days)  # a day off, now to this and now to that side
time.time_ns = lambda: int(time.time() * 1e9)
sys.argv[:3] = ["epp.cli"]
runpy.run_module("epp.cli", run_name="__main__", alter_sys=True)
"""

Step = Callable[[int], None]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Step:
    """Sets the wall clock of child processes off by so many seconds: with libfaketime for every library in them, and
    where that is not installed (apt-get install faketime) in Python's own `time`, which then jumps at each look."""
    if LIBFAKETIME is None:
        python = tmp_path / "python"
        python.write_text(JUMPING)
        python.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(python))
        return lambda _: None
    offset = tmp_path / "offset"

    def set_off(seconds: int) -> None:
        draft = tmp_path / "offset.new"
        draft.write_text(f"{seconds:+d}s")
        os.replace(draft, offset)

    set_off(0)
    monkeypatch.setenv("LD_PRELOAD", str(LIBFAKETIME))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(offset))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    return set_off


async def test_steps_of_the_wall_clock_change_no_time_no_age_and_no_deadline(step: Step, tmp_path: Path) -> None:
    async with SimServer(SimConfig()) as server:
        flags = ["--endpoints", server.address, "--secure-serving=false", "--request-timeout", "60s"]
        async with PickerProcess(tmp_path, flags) as picker, connect(picker.ports["grpc"]) as channel:
            for seconds in (DAY_S, 0, -DAY_S):
                waiting, stream = ScriptedStream(channel), ScriptedStream(channel)
                await streaming(waiting, FULL_DUPLEX)  # one of each is open across the step
                step(seconds)
                await streaming(stream, FULL_DUPLEX)
                await asyncio.sleep(0.2)
                for ends in (waiting, stream):
                    await ends.say(response_body(LAST, end=True))
                    assert await ends.end() is grpc.StatusCode.OK
            state = await picker.state()
            page = Metrics((await picker.ask("/metrics")).decode())
        (endpoint,) = state["pool"]["endpoints"]
        assert endpoint["scrape_error"] is None
        assert 0.0 <= endpoint["age_s"] < 5.0
        assert state["ready"]
        assert not any(state["ledger"].values())
        assert page.total("llm_d_epp_request_end_total", cause="natural") == 6
        assert page.total("llm_d_epp_request_duration_seconds_count") == 6
        assert 6 * 0.2 <= page.total("llm_d_epp_request_duration_seconds_sum") < 60
        assert 0 < page.total("llm_d_epp_request_ttft_seconds_sum") < 30
        assert "unexpected error" not in picker.log()
    last = json.loads(picker.log().splitlines()[-1])["time"]
    assert abs(datetime.fromisoformat(last).timestamp() - time.time()) > DAY_S / 2  # it did step
