"""Processes that are forked, watched, and ended with their parent.

In a process of its own: the one that runs the tests has threads, and must not be forked.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: --workers is refused elsewhere")

PROGRAM = """
import json, logging, os, select, signal, socket, sys, time
from epp.server.workers.fork_server import Birth, Death, ForkServer

def main(worker, order, descriptors):
    with socket.socket(fileno=descriptors[0]) as channel:
        channel.send(b"%d %s" % (worker, order))
        if order == b"raise":
            raise ValueError("secret")
        channel.recv(1)  # for ever, or until the other end is closed

server = ForkServer(main)
ends = {}

def begin(worker, order):
    ends[worker], theirs = socket.socketpair()
    server.order(worker, order, [theirs.fileno()])
    theirs.close()

def news(count):
    heard = []
    while len(heard) < count:
        select.select([server], [], [])
        heard += server.receive()
    return heard

def says(worker):
    return ends[worker].recv(100).decode()
"""


def run(program: str) -> tuple[list[object], str]:
    """What the program printed, as JSON lines, and what it logged."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_workers_are_born_live_and_die_and_it_is_told() -> None:
    (said, deaths), log = run("""
        begin(0, b"a"); begin(1, b"b"); begin(2, b"raise")
        heard = news(4)
        births = [event for event in heard if isinstance(event, Birth)]
        failed = [event for event in heard if isinstance(event, Death)]
        said = sorted(says(worker) for worker in ends)
        pids = {birth.worker: birth.pid for birth in births}
        os.kill(pids[0], signal.SIGKILL)
        first = news(1)
        ends[1].close()
        first += news(1)
        begin(0, b"again")
        news(1)
        print(json.dumps([said, says(0)]))
        print(json.dumps([[d.worker, d.pid == pids[d.worker], d.status] for d in failed + first]))
        server.close()
    """)
    assert said == [["0 a", "1 b", "2 raise"], "0 again"]
    assert deaths == [[2, True, 70], [0, True, -signal.SIGKILL], [1, True, 0]]
    assert "a worker ended by an unexpected error" in log


def test_closing_ends_all_of_them() -> None:
    (pids,), _ = run("""
        begin(0, b"a"); begin(1, b"b")
        print(json.dumps([event.pid for event in news(2)]))
        says(0), says(1)
        server.close()
        assert ends[0].recv(1) == ends[1].recv(1) == b""
    """)
    assert isinstance(pids, list)
    assert len(pids) == 2


def test_nobody_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    program = f"""
def main(worker, order, descriptors):
    alive = os.open({str(fifo)!r}, os.O_WRONLY)
    os.write(1, b"born\\n")  # in one piece, unlike print where output is not buffered
    time.sleep(600)

server = ForkServer(main)
begin(0, b""); begin(1, b"")
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", PROGRAM + program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        with fifo.open("rb") as alive:
            born = [parent.stdout.readline() for _ in range(2)]
            parent.kill()
            assert born == ["born\n", "born\n"]
            assert alive.read() == b""  # the end comes when the last writer is gone
