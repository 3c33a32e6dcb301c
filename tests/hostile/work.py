"""How much work an input makes, told from how the work grows with it and not from how long it takes."""

import time
from collections.abc import Callable

GROWTH = 4
FLOOR_S = 0.002  # below it a clock tells nothing


def assert_work_is_in_proportion(run: Callable[[int], object], n: int) -> None:
    """`run(4 n)` costs about four times `run(n)`, not its sixteenfold; both are measured in CPU time, at their best."""

    def cost_s(size: int) -> float:
        costs = []
        for _ in range(3):
            begun = time.thread_time()
            run(size)
            costs.append(time.thread_time() - begun)
        return min(costs)

    small, large = max(cost_s(n), FLOOR_S), cost_s(GROWTH * n)
    assert large < 2.5 * GROWTH * small, f"{large / small:.0f} times the work for {GROWTH} times the input"
