"""Lines into a file, away from the event loop: a thread writes what waits, once a second and a few lines at a time.

Between two writes other threads may run, so the loop never waits longer than a few lines take. Whatever goes wrong with
the disk stays here: lines are dropped and counted, the log says so once, and a second later it is tried again.
"""

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from epp.observe.families import Families

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
LINES_AT_ONCE = 16
MAX_WAITING_BYTES = 16 * 2**20
MODE = 0o600


def rotated(path: Path) -> Path:
    """Where a full file goes: `trace.jsonl` becomes `trace.old.jsonl`."""
    return path.with_suffix(f".old{path.suffix}")


class TraceCounts:
    """What became of records. There is a series for each outcome from the start."""

    def __init__(self, families: Families) -> None:
        records = families.counter("trace_records", "Records for --record-trace, by what became of them.", ("outcome",))
        self.written, self.no_room, self.disk_error = (records[o,] for o in ("written", "no_room", "disk_error"))


class TraceFile(Generic[T]):
    """Appends to `path`, which only its owner may read. Filled up it is renamed, and a new one begins.

    The last renamed one is kept, so both together take twice `max_bytes` at most. `put` and `close` are for one thread.
    """

    def __init__(self, path: Path, max_bytes: int, line_of: Callable[[T], bytes], counts: TraceCounts) -> None:
        """`line_of`: called in the thread that writes; its result ends with a newline. If it raises, that is a
        fault like the disk's."""
        self._path = path
        self._max_bytes = max_bytes
        self._line_of = line_of
        self._counts = counts
        self._waiting: deque[tuple[T, int]] = deque()
        self._put_bytes = self._taken_bytes = 0  # each is written by one thread alone
        self._descriptor: int | None = None
        self._size_bytes = 0
        self._failing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def put(self, record: T, size_bytes: int) -> None:
        """Have it written soon; dropped if too much waits. `size_bytes`: the memory that it holds, about."""
        if self._put_bytes - self._taken_bytes + size_bytes > MAX_WAITING_BYTES:
            self._counts.no_room.inc()
            return
        self._put_bytes += size_bytes
        self._waiting.append((record, size_bytes))

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, unless the disk takes longer than this."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_S):
            self._write_waiting()
        self._write_waiting()
        self._let_go()

    def _write_waiting(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(LINES_AT_ONCE, len(self._waiting)))]
            self._taken_bytes += sum(size for _, size in taken)
            try:
                self._append(b"".join([self._line_of(record) for record, _ in taken]))
            except Exception as error:  # the disk, or a record that makes no line: neither may end the thread
                self._counts.disk_error.value += len(taken)
                self._let_go()
                if not self._failing:
                    logger.error("%s: the trace cannot be written: %s; requests go on without", self._path, error)
                self._failing = True
            else:
                self._counts.written.value += len(taken)
                if self._failing:
                    logger.info("%s: the trace is written again", self._path)
                self._failing = False

    def _append(self, lines: bytes) -> None:
        """All of it or nothing. Raises OSError."""
        descriptor = self._opened()
        if self._size_bytes and self._size_bytes + len(lines) > self._max_bytes:
            self._let_go()
            os.replace(self._path, rotated(self._path))
            descriptor = self._opened()
        written = os.write(descriptor, lines)
        if written < len(lines):
            os.ftruncate(descriptor, self._size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size_bytes += written

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
            os.fchmod(self._descriptor, MODE)  # it may have been there
            self._size_bytes = os.fstat(self._descriptor).st_size
        return self._descriptor

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
