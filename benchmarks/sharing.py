"""What it costs a request that several workers decide alike, by each way in which they could know the same.

    python -m benchmarks.sharing [--workers 2,4,8] [--endpoints 10,100] [--rounds 5] [--json FILE]

*In flight*: a request reserves, has its first token, ends, and two of its plugins ask for the load. `alone` is one
process's ledger; `memory` is one that shares memory with the others, as `--workers` does; `messages` is one that sends
each change to its peers, who keep a copy: what is counted is packing, sending, receiving, unpacking and applying it in
all of them, without the parent that would have to pass it on and without a single process having to be woken up.

*Prefixes*: a worker enters a chain of blocks, and so does each peer that is told of it, in batches as one message a
millisecond makes them; the figure is what all workers together pay for one request.

*Asked for*: what it would be to ask a scheduler in another process for every decision: one message there and one back
over a Unix socket, as a wait and as CPU of both processes, with nothing decided.

All are µs per request; CPU time, but for the wait.
"""

import argparse
import os
import pickle
import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence

from benchmarks import _report
from epp.ledger import Ledger
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.prefix.index import PrefixIndex
from epp.server.workers import shared_load
from epp.server.workers.channel import PARENT, FrameReader, packed
from epp.server.workers.messages import Kind
from epp.server.workers.shared_load import SharedLoad, Slots

TIMES = 3000
BATCH = 4  # changes in one message: 4,000 requests per second and worker
MESSAGE_BYTES = 2048  # what would tell a scheduler of one request: 250 hashes


def cpu_us(work: Callable[[int], None], times: int = TIMES) -> float:
    """CPU of this process for one `work`."""
    started = time.process_time()
    for number in range(times):
        work(number)
    return (time.process_time() - started) * 1e6 / times


def pool(endpoints: int) -> Snapshot:
    return Snapshot.build(tuple(Endpoint("default", f"pod-{i}", "10.0.0.1", 8000 + i) for i in range(endpoints)))


# --- in flight --------------------------------------------------------------------------------------------------------


def request(ledger: Ledger, snapshot: Snapshot, number: int) -> None:
    """The calls of one request."""
    key = f"stream-{number}"
    ledger.load(snapshot)
    ledger.load(snapshot)
    endpoint_id = snapshot.endpoints[number % len(snapshot)].id
    ledger.reserve(key, endpoint_id, prefill_tokens=100, output_tokens=100, context_tokens=300)
    ledger.first_token(key)
    ledger.release(key)


def alone(snapshot: Snapshot) -> float:
    ledger = Ledger()
    return cpu_us(lambda number: request(ledger, snapshot, number))


def by_memory(snapshot: Snapshot, workers: int) -> float:
    descriptor = shared_load.create(workers)
    slots = Slots().of(snapshot.row_by_id)
    views = [SharedLoad(descriptor, workers, number) for number in range(workers)]
    os.close(descriptor)
    for view in views:
        view.assign(slots)
    ledger = Ledger(views[0])
    return cpu_us(lambda number: request(ledger, snapshot, number))


def by_messages(snapshot: Snapshot, workers: int) -> float:
    """Three changes a request; `BATCH` requests to a message."""
    ledger, copies = Ledger(), [Ledger() for _ in range(workers - 1)]
    ours, theirs = socket.socketpair()
    reader = FrameReader()
    changes: list[tuple[str, str, str]] = []

    def one(number: int) -> None:
        request(ledger, snapshot, number)
        endpoint_id = snapshot.endpoints[number % len(snapshot)].id
        changes.extend((what, f"stream-{number}", endpoint_id) for what in ("reserve", "first", "release"))
        if number % BATCH == 0:
            frame = packed(Kind.TOLD, PARENT, changes)
            changes.clear()
            for copy in copies:
                ours.send(frame)
                for received in reader.feed(theirs.recv(1 << 20)):
                    apply(copy, received.open())

    taken = cpu_us(one)
    ours.close()
    theirs.close()
    return taken


def apply(copy: Ledger, changes: Sequence[tuple[str, str, str]]) -> None:
    for what, key, endpoint_id in changes:
        match what:
            case "reserve":
                copy.reserve(key, endpoint_id, prefill_tokens=100, output_tokens=100, context_tokens=300)
            case "first":
                copy.first_token(key)
            case "release":
                copy.release(key)


# --- prefixes ---------------------------------------------------------------------------------------------------------


def by_prefixes(blocks: int, workers: int) -> float:
    """Chains of which half is new, as in conversations."""
    indexes = [PrefixIndex(256 * 2**20) for _ in range(workers)]
    ours, theirs = socket.socketpair()
    reader = FrameReader()
    changes: list[tuple[str, str, bytes]] = []

    def one(number: int) -> None:
        chain = [number // 2 * 1_000_003 + block for block in range(blocks)]
        indexes[0].insert("default/pod-0", chain, 31_250)
        if workers == 1:
            return
        changes.append(("default/pod-0", "10.0.0.1:8000", array("Q", chain).tobytes()))
        if number % BATCH == 0:
            frame = packed(Kind.TOLD, PARENT, changes)
            changes.clear()
            for index in indexes[1:]:
                ours.send(frame)
                for received in reader.feed(theirs.recv(1 << 20)):
                    for endpoint_id, _, hashes in received.open():
                        index.insert(endpoint_id, array("Q", hashes), 31_250)

    taken = cpu_us(one)
    ours.close()
    theirs.close()
    return taken


# --- asked for --------------------------------------------------------------------------------------------------------


def asked() -> tuple[float, float]:
    """A wait, and CPU of both ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    readable = select.poll()  # which an event loop, with other things to wait for, cannot do without
    pid = os.fork()
    if pid == 0:
        ours.close()
        readable.register(theirs, select.POLLIN)
        while readable.poll() and (message := theirs.recv(65_536)):
            theirs.send(pickle.dumps((message[0], 1)))
        os._exit(0)
    theirs.close()
    readable.register(ours, select.POLLIN)
    message = bytes(MESSAGE_BYTES)
    waits = []
    before = time.process_time() + _report.cpu_seconds(pid)
    for _ in range(TIMES):
        started = time.perf_counter()
        ours.send(message)
        readable.poll()
        ours.recv(65_536)
        waits.append(time.perf_counter() - started)
    cpu = time.process_time() + _report.cpu_seconds(pid) - before
    ours.close()
    os.waitpid(pid, 0)
    return sorted(waits)[len(waits) // 2] * 1e6, cpu * 1e6 / TIMES


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=_numbers, default=[2, 4, 8], metavar="N,…", help="default 2,4,8")
    parser.add_argument("--endpoints", type=_numbers, default=[10, 100], metavar="N,…", help="default 10,100")
    parser.add_argument("--blocks", type=_numbers, default=[16, 256], metavar="N,…", help="of a prompt; default 16,256")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default %(default)s")
    _report.add_json_option(parser)
    arguments = parser.parse_args()
    runs: dict[str, Callable[[], float]] = {}
    for endpoints in arguments.endpoints:
        snapshot = pool(endpoints)
        runs[f"in flight, {endpoints} endpoints, alone"] = lambda snapshot=snapshot: alone(snapshot)
        for workers in arguments.workers:
            for name, way in (("memory", by_memory), ("messages", by_messages)):
                runs[f"in flight, {endpoints} endpoints, {workers} workers, {name}"] = (
                    lambda snapshot=snapshot, workers=workers, way=way: way(snapshot, workers)
                )
    for blocks in arguments.blocks:
        for workers in (1, *arguments.workers):
            runs[f"prefix of {blocks} blocks, {workers} workers"] = lambda blocks=blocks, workers=workers: by_prefixes(
                blocks, workers
            )
    runs["asked for, wait"] = lambda: asked()[0]
    runs["asked for, CPU"] = lambda: asked()[1]
    figures = _report.medians(runs, arguments.rounds)
    print(_report.heading("numpy"))
    print(_report.table([{"what": name, "µs": figure} for name, figure in figures.items()]))
    _report.write({name: figure.as_json() for name, figure in figures.items()}, arguments.json, "numpy")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
