"""Who is ahead, and whether it is more than chance.

Policies meet the same schedules, so seeds are compared in pairs: what counts is the mean of the differences to the best
other policy, against their standard deviation over the seeds. One seed has no spread, and its verdict says little.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from epp.lab.yardsticks import spread

OURS = "ours"


class Verdict(NamedTuple):
    """
    Attributes:
        rival: the best other policy, by its mean.
        ahead: of it, on average; below 0: behind. In the unit of the values.
        spread: standard deviation of that over the seeds; 0 of one seed.
    """

    rival: str
    ahead: float
    spread: float

    @property
    def kept(self) -> bool:
        """Best, or not to be told from the best."""
        return self.ahead >= -self.spread

    def words(self, how: str, unit: str = "") -> str:
        """`how`: the format of a difference; `unit`: written after it."""
        if abs(self.ahead) <= self.spread or self.ahead == 0.0:
            return f"tied with {self.rival} ({self.ahead:+{how}} ±{self.spread:{how}}{unit})"
        if self.ahead > 0.0:
            return f"best, {self.rival} is {self.ahead:{how}}{unit} behind"
        return f"behind {self.rival} by {-self.ahead:{how}}{unit}"


def verdict(values: Mapping[str, Sequence[float]], less_is_better: bool = False) -> Verdict | None:
    """Of `OURS`; `values` of each policy by seed. `None`: there is nobody to compare with."""
    if less_is_better:
        values = {name: [-value for value in theirs] for name, theirs in values.items()}
    mine = values.get(OURS)
    others = {name: theirs for name, theirs in values.items() if name != OURS and len(theirs) == len(mine or ())}
    if not mine or not others:
        return None
    rival = max(others, key=lambda name: fmean(others[name]))
    ahead = [a - b for a, b in zip(mine, others[rival], strict=True)]
    return Verdict(rival, fmean(ahead), spread(ahead))
