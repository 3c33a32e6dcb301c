"""Work on several processes: its order, what it raises, who asks on, and how far it is."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Generator

import pytest

from epp.lab.parallel import ProgressBar, in_turns, map_in_order
from epp.lab.pools import parse_pool
from epp.problem import Problem


def test_what_still_runs_elsewhere_is_not_waited_for_when_one_raises() -> None:
    """Nor with Ctrl-C, which is raised in the same place."""
    with ProgressBar(4, "runs") as progress, pytest.raises(ValueError, match="non-negative"):
        map_in_order(time.sleep, [3600.0, -1.0, 3600.0, 3600.0], 2, progress)


def test_processes_end_with_the_one_that_began_them() -> None:
    """Killed as by a job's scheduler, in the middle. They hold its output, which has no end before theirs."""
    asleep = "import sys; from time import sleep; sys.stdout.write('at work'); sys.stdout.flush(); sleep(300)"
    program = (
        "from epp.lab.parallel import ProgressBar, map_in_order\n"
        f"with ProgressBar(2, 'runs') as progress: map_in_order(exec, [{asleep!r}] * 2, 2, progress)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as out:
        assert out.read(len("at work" * 2)) == b"at work" * 2
        parent.kill()
        assert out.read() == b""
    assert parent.wait() == -signal.SIGKILL


def test_work_goes_on_where_nobody_can_see_how_far_it_is(monkeypatch) -> None:
    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise BrokenPipeError

    with ProgressBar(2, "runs", Gone()) as progress:
        assert map_in_order(abs, [-3, 1], 1, progress) == [3, 1]
    monkeypatch.setattr(sys, "stderr", None)  # as of a process that was begun with 2>&-
    with ProgressBar(2, "runs", clock=iter(range(0, 10_000, 60)).__next__) as progress:
        assert map_in_order(abs, [-3, 1], 1, progress) == [3, 1]


def test_work_in_processes_keeps_its_order_and_raises_what_it_raised() -> None:
    with ProgressBar(3, "runs") as progress:
        assert map_in_order(abs, [-3, 1, -2], 2, progress) == [3, 1, 2]
        with pytest.raises(Problem, match="h200"):
            map_in_order(parse_pool, ["h100", "h200"], 2, progress)


def test_what_costs_most_is_begun_first() -> None:
    """The last of four tasks for two processes: it would have to wait for an hour of sleep."""
    with ProgressBar(4, "runs") as progress, pytest.raises(ValueError, match="non-negative"):
        map_in_order(time.sleep, [3600.0, 3600.0, 3600.0, -1.0], 2, progress, begins=abs)


def test_without_a_terminal_work_is_told_of_at_once_and_every_half_minute() -> None:
    now_s, out = 0.0, io.StringIO()
    with ProgressBar(10, "runs", out, clock=lambda: now_s) as progress:
        for _ in range(10):
            now_s += 10.0
            progress.step()
    assert out.getvalue() == "0/10 runs\n3/10 runs, 70 s left\n6/10 runs, 40 s left\n9/10 runs, 10 s left\n"
    with ProgressBar(10, "runs", out := io.StringIO(), clock=lambda: now_s) as progress:
        for _ in range(10):
            progress.step()
    assert out.getvalue() == "0/10 runs\n"


def test_the_time_left_goes_by_what_steps_cost() -> None:
    """The dear ones come first: by their number alone three more steps would seem to take as long each as the first."""
    now_s, out = 0.0, Terminal()
    with ProgressBar(4, "runs", out, clock=lambda: now_s, cost=9.0) as progress:
        now_s = 60.0
        progress.step(6.0)
        progress.less(1)
        now_s = 70.0
        progress.step(1.0)
    drawn = out.getvalue().split("\r\x1b[K")[2:-1]
    assert [(text.count("█"), text.partition(" ")[2]) for text in drawn] == [
        (20, "1/4 runs, 30 s left"),
        (26, "2/3 runs, 10 s left"),
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_steps_by_its_cost(jobs: int) -> None:
    costs: list[float] = []

    class Noted(ProgressBar):
        def step(self, cost: float = 1.0) -> None:
            costs.append(cost)

    with Noted(3, "runs") as progress:
        assert map_in_order(abs, [-3, 1, -2], jobs, progress, cost_of=lambda task: 10.0 * task) == [3, 1, 2]
    assert sorted(costs) == [-30.0, -20.0, 10.0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_grows_says_how_long_it_will_take_and_leaves_nothing_behind() -> None:
    now_s, out = 0.0, Terminal()
    with ProgressBar(4, "runs", out, clock=lambda: now_s) as progress:
        for _ in range(4):
            now_s += 10.0
            progress.step()
    drawn = out.getvalue().split("\r\x1b[K")
    assert [(text.count("█"), text.partition(" ")[2]) for text in drawn[1:-1]] == [
        (0, "0/4 runs"),
        (7, "1/4 runs, 30 s left"),
        (15, "2/4 runs, 20 s left"),
        (22, "3/4 runs, 10 s left"),
        (30, "4/4 runs, 0 s left"),
    ]
    assert (drawn[0], drawn[-1]) == ("", "")


def test_whoever_asks_goes_on_once_it_is_answered_and_the_order_stays() -> None:
    def asks(*numbers: int) -> Generator[int, int, str]:
        said = ""
        for number in numbers:
            said += f"{yield number} "
        return said

    for jobs in (1, 2):
        with ProgressBar(4, "runs") as progress:
            asking = [asks(-3, 1), asks(), asks(-2, -5)]
            assert in_turns(abs, asking, jobs, progress) == ["3 1 ", "", "2 5 "]
