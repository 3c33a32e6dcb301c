"""Of several ways to run one schedule, those that lose fewest requests, without running all of them to their end.

All go on by turns in virtual time, always the one that has lost fewest so far. Once one is over, whoever has lost more
can only lose more still, and is given up. So a loser runs no further than up to the loss that the best has at its end.
"""

import heapq
from collections.abc import Callable, Sequence

from epp.lab.experiment import Experiment, LabResult, Served
from epp.lab.world import World

_TURNS = 32  # of a run: what is lost is counted after each


def fewest_lost(
    experiments: Sequence[Experiment], lost: Callable[[Sequence[Served]], int], duration_s: float
) -> list[LabResult]:
    """Those that lose fewest, in the order given. One at least, and maybe others that came to their end all the same.
    Raises `ConfigError`.

    Args:
        lost: how many of these requests, which have all ended, are lost.
        duration_s: for how long requests arrive.
    """
    turn_s = duration_s / _TURNS
    running = [(0, 0.0, number, _Runner(World(experiment))) for number, experiment in enumerate(experiments)]
    fewest: int | None = None
    over: dict[int, LabResult] = {}
    while running:
        before, until_s, number, runner = heapq.heappop(running)
        if fewest is not None and before > fewest:
            break  # and so have all the others
        is_over = runner.world.run_until(until_s + turn_s)
        now_lost = before + lost(runner.ended())
        if is_over:
            over[number] = runner.world.result()
            fewest = now_lost if fewest is None else min(fewest, now_lost)
        else:
            heapq.heappush(running, (now_lost, until_s + turn_s, number, runner))
    return [over[number] for number in sorted(over)]


class _Runner:
    def __init__(self, world: World) -> None:
        self.world = world
        self._seen = 0
        self._open: list[Served] = []

    def ended(self) -> list[Served]:
        """Requests that have ended since this was last asked."""
        known = [*self._open, *self.world.served[self._seen :]]
        self._seen = len(self.world.served)
        self._open = [served for served in known if served.ended_s is None]
        return [served for served in known if served.ended_s is not None]
