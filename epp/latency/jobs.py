"""What training is given, and what it finds.

Apart from training itself, so that to predict and to observe need not load XGBoost.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epp.latency.buffer import Rows
from epp.latency.model import Model
from epp.latency.prior import FrozenPrior
from epp.latency.types import FloatArray, Target


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """All that training needs, copied: nothing of it changes while another thread works on it.

    Attributes:
        now_s: when it was made; rows weigh half as much for every `half_life_s` that they are older.
        min_rows: so many rows with a target that target needs.
        champion, champion_version: what is being served; `None` and 0 are the prior alone.
    """

    rows: Rows
    prior: FrozenPrior
    champion: Model | None
    champion_version: int
    now_s: float
    half_life_s: float
    min_rows: int


@dataclass(frozen=True, slots=True)
class Contest:
    """One target, on the held-back rows: mean |log error| of the new trees and of what is served. Lower is better."""

    challenger: float
    champion: float
    holdout_rows: int

    @property
    def won(self) -> bool:
        return self.challenger < self.champion


@dataclass(frozen=True, slots=True)
class Handover:
    """What a target's winner brings along.

    Attributes:
        offsets: by endpoint, its bias and how many samples say so.
        scores, levels: conformal scores of the held-back rows, oldest first, and their load levels.
    """

    offsets: Mapping[str, tuple[float, float]]
    scores: FloatArray
    levels: npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The outcome of a job.

    Attributes:
        model: the winners, and the champion's trees for the other targets; `None` if nothing won.
        contests: by target that had rows enough.
        handovers: by target that won.
    """

    model: Model | None
    contests: Mapping[Target, Contest]
    handovers: Mapping[Target, Handover]
    champion_version: int
    trained_at_s: float
    rows: int
