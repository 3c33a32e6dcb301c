"""Many runs on several processes, with a progress bar. The results are the same for any number of processes."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")

_WIDTH = 30
_REDRAW_S = 0.2
_LINE_S = 30.0  # between two lines where there is no terminal


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProgressBar:
    """A bar on a terminal, `total` steps long; it costs a line, which it clears at its end. Elsewhere a line at once,
    and one every half minute.

    Args:
        clock: in seconds, monotonic.
        cost: of all steps together, in a unit of its own, by which the bar grows and the time left is told; `None`: all
            cost the same.
    """

    def __init__(
        self,
        total: int,
        what: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        cost: float | None = None,
    ) -> None:
        self._total, self._what = total, what
        self._cost_left, self._cost_done = float(total) if cost is None else cost, 0.0
        self._stream: TextIO | None = stream or sys.stderr  # there may be none
        self._shown = self._stream is not None and self._stream.isatty()
        self._done = 0
        self._clock = clock
        self._started_s = self._drawn_s = clock()

    def __enter__(self) -> "ProgressBar":
        if self._shown:
            self._draw()
        else:
            self._say()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._write("\r\x1b[K")

    def step(self, cost: float = 1.0) -> None:
        self._done += 1
        self._cost_done += cost
        self._cost_left = max(self._cost_left - cost, 0.0)
        since_drawn_s = self._clock() - self._drawn_s
        if self._shown and (since_drawn_s >= _REDRAW_S or self._done == self._total):
            self._draw()
        elif not self._shown and since_drawn_s >= _LINE_S and self._done < self._total:
            self._say()

    def less(self, steps: int, cost: float = 1.0) -> None:
        """So many fewer steps than was said, of this cost each, are needed after all."""
        self._total -= steps
        self._cost_left = max(self._cost_left - steps * cost, 0.0)

    def _draw(self) -> None:
        self._drawn_s = self._clock()
        whole = self._cost_done + self._cost_left
        filled = _WIDTH if self._done >= self._total else int(_WIDTH * self._cost_done / whole) if whole else 0
        bar = "█" * filled + "·" * (_WIDTH - filled)
        self._write(f"\r\x1b[K{bar} {self._count()}")

    def _say(self) -> None:
        self._drawn_s = self._clock()
        self._write(f"{self._count()}\n")

    def _write(self, text: str) -> None:
        """Where that cannot be, nothing is shown any more: the work is worth more than its progress."""
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except OSError:
            self._stream, self._shown = None, False

    def _count(self) -> str:
        passed_s = self._drawn_s - self._started_s
        known = self._done and self._cost_done
        left_s = passed_s / self._cost_done * self._cost_left if known and self._done < self._total else 0.0
        left = f", {left_s:.0f} s left" if known else ""
        return f"{self._done}/{self._total} {self._what}{left}"


def map_in_order(
    work: Callable[[T], R],
    tasks: Sequence[T],
    jobs: int,
    progress: ProgressBar,
    begins: Callable[[T], Any] = lambda task: 0,
    cost_of: Callable[[T], float] = lambda task: 1.0,
) -> list[R]:
    """`work` of each task, in the order of the tasks. They are begun in the order of the key `begins`: with what costs
    most first, all processes end together. See `in_turns`."""
    order = sorted(range(len(tasks)), key=lambda number: begins(tasks[number]))
    asking: list[Generator[T, R, R]] = [_once(tasks[number]) for number in order]
    found = in_turns(work, asking, jobs, progress, cost_of)
    by_number = dict(zip(order, found, strict=True))
    return [by_number[number] for number in range(len(tasks))]


def _once(task: T) -> Generator[T, R, R]:
    return (yield task)


def in_turns(
    work: Callable[[T], R],
    asking: Sequence[Generator[T, R, V]],
    jobs: int,
    progress: ProgressBar,
    cost_of: Callable[[T], float] = lambda task: 1.0,
) -> list[V]:
    """What each of these returns, in their order. Each yields one task after another, and is sent the `work` of it
    before it says which is the next; meanwhile the others' tasks are worked on. `progress` steps with every task, by
    its cost.

    With one job in this process. What is raised, by `work` or by who asks, is raised, and ends the processes at once,
    as Ctrl-C does.
    """
    returned: dict[int, V] = {}

    def ask(number: int, result: R | None) -> list[tuple[int, T]]:
        """The next task of that number, if there is one."""
        try:
            return [(number, asking[number].send(result))]  # type: ignore[arg-type]  # the first is sent None
        except StopIteration as end:
            returned[number] = end.value
            return []

    todo = deque(one for number in range(len(asking)) for one in ask(number, None))
    if jobs <= 1 or len(todo) <= 1:
        while todo:
            number, task = todo.popleft()
            result = work(task)
            progress.step(cost_of(task))
            todo += ask(number, result)
        return [returned[number] for number in range(len(asking))]
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(jobs, len(todo)), initializer=_leave_signals_to_the_parent) as pool:
        waiting = {pool.submit(work, task): (number, task) for number, task in todo}
        try:
            while waiting:
                ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    result, (number, task) = future.result(), waiting.pop(future)
                    progress.step(cost_of(task))
                    waiting |= {pool.submit(work, task): (number, task) for number, task in ask(number, result)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # What runs, and what is already handed over, would be waited for: minutes, for nobody.
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
    return [returned[number] for number in range(len(asking))]


def _leave_signals_to_the_parent() -> None:
    """A terminal sends Ctrl-C to all processes of a command. The parent ends its children by SIGTERM, which does so
    whatever handler the parent had when they were forked; one that dies itself takes them along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Of a parent that is killed nobody hears otherwise: its children would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
