"""One request's way through the framework: what plugins may read of it, and where they leave what they found."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from epp.inference.request import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.data import DataKey, FloatArray, IntArray

T = TypeVar("T")


class Observation(NamedTuple):
    """A number that a plugin wants counted: `family` without prefix, e.g. `prefix_indexer_hit_ratio`.

    `labels` come on top of the plugin's name and type; their values are from small sets, never from a client.
    """

    family: str
    value: float
    plugin_name: str
    plugin_type: str
    labels: tuple[tuple[str, str], ...] = ()


Explained: TypeAlias = FloatArray | float | None
"""One number per candidate, or one for all of them. NaN or `None`: not known."""


class Explanation(NamedTuple):
    """What a plugin went by, for the decision record.

    Attributes:
        rows: the candidates that it looked at, as snapshot rows, ascending.
        values: by a name with its unit, e.g. `wait_ms`; what is per candidate in the order of `rows`.
    """

    rows: IntArray
    values: Mapping[str, Explained]


@dataclass(slots=True)
class Cycle:
    """One request on its way. Created at receipt, dropped after its end.

    Attributes:
        now_s: monotonic seconds of the decision. Plugins have no other clock.
        received_s: monotonic seconds at which the request began to arrive; `None`: at `now_s`.
        rng: the only source of chance.
        data: what producers published, by key.
        state: private notes of a plugin from one hook to the next, by plugin name.
        set_headers: request headers that plugins want set towards the model server.
        response_headers: headers that plugins want added to the response.
        notes: fallbacks taken and the like, for the decision record: plugin name to a short reason, or to what writes
            one as its text when somebody reads the record.
        observations: numbers for the metrics page; handed over when the decision is made, and at the end.
        profile: name of the profile that runs, or ran last; empty before the first.
        explanations: by profile and plugin name, see `explain`; `None`: there are none, or the decision is recorded.
    """

    request: Request
    now_s: float
    rng: random.Random
    data: dict[DataKey[Any], Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    set_headers: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    received_s: float | None = None
    profile: str = ""
    explanations: dict[tuple[str, str], Explanation] | None = None

    @property
    def waited_ms(self) -> float:
        """What the request has spent here before its decision: upload of its body, queue."""
        return 0.0 if self.received_s is None else (self.now_s - self.received_s) * 1e3

    def publish(self, key: DataKey[T], value: T) -> None:
        self.data[key] = value

    def get(self, key: DataKey[T]) -> T | None:
        """What a producer published under `key`; `None` when it did not run, failed, or had nothing to say."""
        value: T | None = self.data.get(key)
        return value

    def explain(self, plugin_name: str, candidates: Candidates, values: Mapping[str, Explained]) -> None:
        """For filters, scorers and pickers: show these values beside the scores, in the decision record.

        Only references are kept, so give arrays that exist anyway, and do not write to them afterwards. Names of values
        have their unit in them, e.g. `wait_ms`.
        """
        if self.explanations is None:
            self.explanations = {}
        self.explanations[self.profile, plugin_name] = Explanation(candidates.rows, values)
