"""What a transport costs: CPU of the server per ext_proc stream, for each transport in turn.

    python -m benchmarks.transport [--seconds 2] [--rounds 3] [--json FILE]

The server is a child process. Behind the transport is an exchange of one of two kinds:

* `recorded`: says what was said before, so that all that is measured is the transport;
* `conversation`: the real conversation, every request to the same place, no scheduling. It ends a stream after the
  first token where that is safe, as the picker does behind our bootstrap.

Two kinds of load, because they batch differently:

* `lockstep`: 32 streams at once on one connection, each of which sends a message only when the one before is answered,
  as Envoy does. The client is Python and may be slower than the server; only the server's CPU is counted.
* `saturated`: h2load (Debian: nghttp2-client) sends whole conversations and never waits. Left out if it is missing.

CPU is user and system time of all threads, from /proc. Figures of different machines do not compare; those of one run
do: rounds alternate between the transports, and medians are shown.
"""

import argparse
import asyncio
import itertools
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import uvloop

from benchmarks import _envoy as envoy
from benchmarks._report import Figure, add_json_option, cpu_seconds, heading, table, write
from epp.server.grpc_transport import ext_proc_server
from epp.server.health import HealthState
from epp.server.lean.server import lean_server
from epp.server.listen import TcpAddress
from epp.server.transport import METHOD, ExchangeFactory, Stream
from epp.wire.conversation import Conversation
from epp.wire.events import RequestReady, ResponseBody, ResponseStarted, Route

TRANSPORTS = ("grpc", "lean")
EXCHANGES = ("recorded", "conversation")
STREAMS_AT_ONCE = 32
ROUTE = Route(destination="10.0.0.1:8000")


# --- the server, a child process --------------------------------------------------------------------------------------


class ConstantPick:
    """An exchange that sends every request to the same place."""

    def __init__(self, _: Stream) -> None:
        self._conversation = Conversation()

    @property
    def finished(self) -> bool:
        return self._conversation.finished

    def receive(self, data: bytes) -> list[bytes]:
        step = self._conversation.receive(data)
        for event in step.events:
            if isinstance(event, RequestReady):
                step.replies.extend(self._conversation.route(ROUTE))
            elif isinstance(event, ResponseStarted):
                step.replies.extend(self._conversation.respond({}))
            elif isinstance(event, ResponseBody):
                self._conversation.let_go()
        return step.replies

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        self._conversation.closed()


class Recorded:
    """An exchange that says what `ConstantPick` said to the same messages."""

    def __init__(self, answers: Sequence[list[bytes]], finishes: bool) -> None:
        self._answers = iter(answers)
        self._left = len(answers) if finishes else -1
        self.finished = False

    def receive(self, data: bytes) -> list[bytes]:
        self._left -= 1
        self.finished = self._left == 0
        return next(self._answers)

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        pass


class NoStream:
    def send(self, replies: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...

    def afterwards(self, action: Callable[[], None]) -> None: ...


def recording_of(case: "Case") -> ExchangeFactory:
    pick = ConstantPick(NoStream())
    answers = [pick.receive(message) for step in case.steps for message in step.messages]
    return lambda _: Recorded(answers, pick.finished)


async def serve(transport: str, exchange: str, case: "Case") -> None:
    make = lean_server if transport == "lean" else ext_proc_server
    exchanges = recording_of(case) if exchange == "recorded" else ConstantPick
    server = make(exchanges, [TcpAddress(0, "--port", "127.0.0.1")], HealthState(list))
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


@contextmanager
def server_process(*what: str) -> Iterator[tuple[int, int]]:
    """Pid and port."""
    command = [sys.executable, "-m", "benchmarks.transport", "--serve", *what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


# --- the conversations ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Messages that are sent together, and how many replies are then waited for."""

    messages: tuple[bytes, ...]
    replies: int


@dataclass(frozen=True)
class Case:
    name: str
    steps: tuple[Step, ...]


def _full_duplex(body_bytes: int, chunks: int = 0) -> tuple[Step, ...]:
    """Nothing is answered before the body is there; then it comes back joined, in pieces of at most 62,000 bytes."""
    modes = envoy.FULL_DUPLEX
    request = [envoy.request_headers(modes, end=not body_bytes), *envoy.request_body(modes, envoy.chat(body_bytes))]
    steps = [Step(tuple(request), 1 + -(-body_bytes // 62_000))]
    if chunks:
        steps.append(Step((envoy.response_headers(),), 1))
        steps += [Step((envoy.response_chunk(end=i == chunks - 1),), 1) for i in range(chunks)]
    return tuple(steps)


def _to_the_first_token(body_bytes: int) -> tuple[Step, ...]:
    """Each message is answered before the next one comes; the last answer ends the stream."""
    modes = envoy.RECOMMENDED
    (body,) = envoy.request_body(modes, envoy.chat(body_bytes))
    messages = [envoy.request_headers(modes), body, envoy.response_headers(), envoy.response_chunk()]
    return tuple(Step((message,), 1) for message in messages)


CASES = (
    Case("our bootstrap, 1 KB chat", _to_the_first_token(1_024)),
    Case("headers only", _full_duplex(0)),
    Case("1 KB chat", _full_duplex(1_024)),
    Case("32 KB chat", _full_duplex(32_768)),
    Case("1 KB chat, 100 chunks", _full_duplex(1_024, chunks=100)),
)


# --- load in lockstep -------------------------------------------------------------------------------------------------


class Lockstep(asyncio.Protocol):
    """An HTTP/2 client just good enough to hold one conversation on each of many streams, over and over."""

    def __init__(self, case: Case) -> None:
        self._steps = [(envoy.framed(step.messages), step.replies) for step in case.steps]
        self._block = envoy.call_block()
        self._next_id = 1
        self._state: dict[int, list[int]] = {}  # by stream: its step, replies still to come, and bytes of one
        self._rest = b""
        self._received = 0
        self._out: list[bytes] = []
        self.completed = 0
        self.stopping = False
        self.idle = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out.append(envoy.greeting())
        for _ in range(STREAMS_AT_ONCE):
            self._open()
        self._flush()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= 9:
            high, low, kind, flags, stream_id = struct.unpack_from(">HBBBI", data, at)
            end = at + 9 + (high << 8 | low)
            if end > len(data):
                break
            self._on_frame(kind, flags, stream_id, data[at + 9 : end])
            at = end
        self._rest = data[at:]
        self._flush()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == 0:
            self._count(stream_id, payload)
            self._received += len(payload)
            if self._received > 2**28:
                self._out.append(envoy.frames(8, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        elif kind == 1 and flags & 1:
            del self._state[stream_id]
            self.completed += 1
            if not self.stopping:
                self._open()
            elif not self._state:
                self.idle.set()
        elif kind == 4 and not flags & 1:
            self._out.append(envoy.frames(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self._out.append(envoy.frames(6, 1, 0, payload))
        elif kind == 7 or (kind == 3 and stream_id in self._state):
            raise RuntimeError("the server broke off")

    def _count(self, stream_id: int, payload: bytes) -> None:
        """Replies in a DATA frame. Their prefixes are never cut in these conversations' sizes and frames."""
        state = self._state[stream_id]
        at = 0
        while at < len(payload):
            if not state[2]:
                state[2] = struct.unpack_from(">xI", payload, at)[0]
                at += 5
            taken = min(state[2], len(payload) - at)
            state[2] -= taken
            at += taken
            if not state[2]:
                state[1] -= 1
        if state[1] == 0 and not state[2]:
            state[0] += 1
            self._say(stream_id, state)

    def _open(self) -> None:
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self._out.append(envoy.frames(1, 4, stream_id, self._block))
        state = self._state[stream_id] = [0, 0, 0]
        self._say(stream_id, state)

    def _say(self, stream_id: int, state: list[int]) -> None:
        if state[0] < len(self._steps):
            data, state[1] = self._steps[state[0]]
            self._out.append(envoy.frames(0, 0, stream_id, data))
        elif state[0] == len(self._steps):
            self._out.append(envoy.frames(0, 1, stream_id, b""))

    def _flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 — a measured client has no time to tell
        await asyncio.sleep(0.01)


async def lockstep(case: Case, pid: int, port: int, seconds: float) -> tuple[float, float]:
    """µs of server CPU per stream, and streams per second."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Lockstep(case), "127.0.0.1", port)
    async with asyncio.timeout(60):
        await until(lambda: client.completed >= STREAMS_AT_ONCE)  # they begin together, and so end in waves
        before, cpu, started = client.completed, cpu_seconds(pid), loop.time()
        await asyncio.sleep(seconds)
        await until(lambda: client.completed - before >= 2 * STREAMS_AT_ONCE)
    done, cpu, elapsed = client.completed - before, cpu_seconds(pid) - cpu, loop.time() - started
    client.stopping = True
    await asyncio.wait_for(client.idle.wait(), 60)
    return cpu / done * 1e6, done / elapsed


# --- load that saturates ----------------------------------------------------------------------------------------------


def saturated(h2load: str, case: Case, pid: int, port: int, streams: int) -> tuple[float, float]:
    """µs of server CPU per stream, and streams per second."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(envoy.framed([message for step in case.steps for message in step.messages]))
        body.flush()
        command = [h2load, "-c1", f"-m{STREAMS_AT_ONCE}", "-w24", "-W24", "-d", body.name]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{port}{METHOD}"]
        cpu, started = cpu_seconds(pid), time.monotonic()
        output = subprocess.run([*command, f"-n{streams}"], capture_output=True, text=True, check=True).stdout
        cpu, elapsed = cpu_seconds(pid) - cpu, time.monotonic() - started
    match = re.search(r"(\d+) succeeded", output)
    if match is None or int(match[1]) != streams:
        raise RuntimeError(f"h2load did not complete every stream:\n{output}")
    return cpu / streams * 1e6, streams / elapsed


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one combination took: µs of the server's CPU per stream, and streams per second."""

    case: str
    exchange: str
    load: str
    transport: str
    cpu_us_per_stream: Figure
    streams_per_s: Figure

    def as_json(self) -> dict[str, Any]:
        figures = {"cpu_us_per_stream": self.cpu_us_per_stream, "streams_per_s": self.streams_per_s}
        return {**vars(self), **{name: figure.as_json() for name, figure in figures.items()}}


def measure(cases: Sequence[Case], seconds: float, rounds: int) -> list[Row]:
    taken: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for case, exchange in itertools.product(cases, EXCHANGES):
        print(f"{case.name}, {exchange} …", file=sys.stderr)
        for _, transport in itertools.product(range(rounds), TRANSPORTS):
            with server_process(transport, exchange, case.name) as (pid, port):
                for load, figures in loads(case, pid, port, seconds):
                    taken.setdefault((case.name, exchange, load, transport), []).append(figures)
    rows = []
    for key, figures_of_rounds in taken.items():
        costs, rates = zip(*figures_of_rounds, strict=True)
        rows.append(Row(*key, Figure.of(costs), Figure.of(rates)))
    return rows


def loads(case: Case, pid: int, port: int, seconds: float) -> Iterator[tuple[str, tuple[float, float]]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(lockstep(case, pid, port, seconds))
    yield "lockstep", figures
    h2load = shutil.which("h2load")
    if h2load is not None:
        yield "saturated", saturated(h2load, case, pid, port, max(2 * STREAMS_AT_ONCE, round(figures[1] * seconds)))


def side_by_side(rows: Sequence[Row]) -> str:
    by_key = {(row.case, row.exchange, row.load, row.transport): row.cpu_us_per_stream for row in rows}
    lines = []
    for key in dict.fromkeys((row.case, row.exchange, row.load) for row in rows):
        grpc, lean = by_key[*key, "grpc"], by_key[*key, "lean"]
        ratio = f"{grpc.median / lean.median:.1f}×"
        lines.append({"case": key[0], "exchange": key[1], "load": key[2], "grpc": grpc, "lean": lean, "ratio": ratio})
    return table(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases with this in their name")
    add_json_option(parser)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        transport, exchange, name = arguments.serve
        (case,) = (case for case in CASES if case.name == name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(transport, exchange, case))
        return
    cases = [case for case in CASES if arguments.only in case.name]
    rows = measure(cases, arguments.seconds, arguments.rounds)
    print(heading())
    print("CPU µs per stream: median (best)")
    print(side_by_side(rows))
    settings = {"seconds": arguments.seconds, "rounds": arguments.rounds}
    write({**settings, "rows": [row.as_json() for row in rows]}, arguments.json)


if __name__ == "__main__":
    main()
