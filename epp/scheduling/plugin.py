"""The extension points, as a few verbs in the order of time.

    process_request → screen → produce → admit → pick_profiles → filter → score → pick → process_results
    → pre_request → response_headers → first_token → response_chunk → end

A plugin is one class in one file under `epp/plugins/`. It derives from the roles it plays, names its type, and declares
its parameters as a nested model; the registry finds it by looking. Hooks of one kind run in the order in which the
configuration lists the plugins, except producers, which run after the producers they read from.

Rules that the framework counts on: hooks do no I/O and never block; a scorer returns one float per candidate; a filter
returns some of the candidates it was given; `end` comes exactly once for each `pre_request`, whatever happened between.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from epp.latency.types import Prediction, Sample, Situation, Target
from epp.ledger import Ledger, Outcome
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DataKey, FloatArray
from epp.scheduling.decision import Decision, Denial, ProfileResult


class Parameters(BaseModel):
    """Base of every plugin's parameters: camelCase in the file, unknown keys refused, no silent conversions, numbers
    finite.

    Who sets a field whose description starts with "Deprecated" or "Ignored" is told so.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel, allow_inf_nan=False)


class IgnoredParameters(Parameters):
    """For plugins that take no parameters but, as in llm-d, tolerate any."""

    model_config = ConfigDict(extra="ignore")


class Stability(Enum):
    BETA = "beta"
    ALPHA = "alpha"
    DEPRECATED = "deprecated"


class LatencyPredictor(Protocol):
    """What a plugin that predicts latency needs of a predictor; see `epp.latency.types`."""

    def is_ready(self, target: Target) -> bool:
        """It has seen enough of this target for its predictions to be used."""

    def predict(self, situation: Situation, *, quantile: float | None = None, e2e: bool = False) -> Prediction:
        """One call for all candidates. Bounds hold with probability `quantile`; `None`: they are the means."""

    def without_prediction(self, situation: Situation) -> Prediction:
        """The features alone, to learn from, for a fraction of the cost: all estimates are NaN."""

    def observe(self, sample: Sample) -> None:
        """Learn from a request that has ended. Quick: training happens elsewhere."""

    def samples_of(self, endpoint_id: str) -> int:
        """Requests of this endpoint that were learned from."""

    def forget(self, endpoint_id: str) -> None:
        """The endpoint has left the pool."""

    def state(self, now_s: float) -> Mapping[str, Any]:
        """For the debug page: plain values."""


@dataclass(frozen=True, slots=True)
class Services:
    """The shared objects that plugins may hold on to. Built once, in the composition root.

    Attributes:
        predictor: `None`: latency is not predicted.
        timer: monotonic seconds, for plugins that limit what they may cost, never for decisions; `None`: no limits.
    """

    ledger: Ledger
    predictor: LatencyPredictor | None = None
    timer: Callable[[], float] | None = None


class Plugin(ABC):
    """One instance of one plugin type.

    Class attributes:
        plugin_type: what `type:` says in the configuration.
        aliases: deprecated spellings of it.
        parameters_model: validates `parameters:`.
    """

    plugin_type: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    stability: ClassVar[Stability] = Stability.BETA
    parameters_model: ClassVar[type[Parameters]] = IgnoredParameters

    def __init__(self, name: str, parameters: Any, services: Services) -> None:
        self.name = name
        self.services = services

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        """Data that must be produced before this plugin runs. Missing default producers are created."""
        return ()

    def dump_state(self) -> Mapping[str, Any] | None:
        """For `/debug/plugins/state`: plain values; `None` when there is nothing to tell."""
        return None

    def not_ready(self) -> str | None:
        """Why the picker is not ready on account of this plugin; `None` when it is."""
        return None


class RequestProcessor(Plugin):
    @abstractmethod
    def process_request(self, cycle: Cycle) -> Denial | None:
        """Before admission: look at the request, leave attributes in `cycle.state`."""


class Screener(Plugin):
    @abstractmethod
    def screen(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        """Cut down the whole pool before anything is produced. Results of several screeners are intersected."""


class Producer(Plugin):
    @property
    @abstractmethod
    def produces(self) -> Sequence[DataKey[Any]]:
        """Keys that `produce` may publish."""

    @abstractmethod
    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        """Publish data about the candidates. A raised exception costs this producer's data, never the request."""


class Admitter(Plugin):
    @abstractmethod
    def admit(self, cycle: Cycle, candidates: Candidates) -> Denial | None:
        """`None` lets the request through."""


class SaturationDetector(Plugin):
    @abstractmethod
    def saturation(self, candidates: Candidates, now_s: float) -> float:
        """Load over capacity of these endpoints: 1.0 and more is full."""


class ProfileHandler(Plugin):
    @abstractmethod
    def pick_profiles(
        self, cycle: Cycle, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Names of the profiles to run next, given what ran before; empty ends the loop."""

    @abstractmethod
    def process_results(self, cycle: Cycle, results: Mapping[str, ProfileResult | None]) -> str | None:
        """Name of the primary profile; `None` when no decision came out."""


class Filter(Plugin):
    @abstractmethod
    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        """Some of the candidates."""

    def drop_reason(self) -> str:
        """For the decision record: why candidates are dropped, in a few words."""
        return self.plugin_type


class Scorer(Plugin):
    @abstractmethod
    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        """One float per candidate, in [0, 1], higher is better. NaN counts as 0."""


class Picker(Plugin):
    @abstractmethod
    def pick(self, cycle: Cycle, candidates: Candidates, totals: FloatArray) -> Sequence[int]:
        """Snapshot rows, first choice first; at least one."""


class PreRequest(Plugin):
    @abstractmethod
    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        """After the choice, before the reply. May set request headers through `cycle.set_headers`."""


class ResponseHeadersHook(Plugin):
    @abstractmethod
    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        """Once, with the response's headers. May add response headers through `cycle.response_headers`."""


class FirstTokenHook(Plugin):
    @abstractmethod
    def first_token(self, cycle: Cycle, decision: Decision, at_s: float) -> None:
        """Once, with the first token of a stream, or the first byte of any other answer; of an error never."""


class ResponseChunkHook(Plugin):
    @abstractmethod
    def response_chunk(self, cycle: Cycle, decision: Decision, data: bytes, at_s: float) -> None:
        """With every chunk of the response. Costs CPU per output token: think twice."""


class EndHook(Plugin):
    @abstractmethod
    def end(self, cycle: Cycle, decision: Decision, outcome: Outcome) -> None:
        """Exactly once for each `pre_request`, however the request ended.

        The response may have been let go of before its end; then what producers published is gone from `cycle`, and so
        are the request's headers and prompts. What is needed here belongs into `cycle.state`.
        """


class Replicated(Plugin):
    """Remembers things from one request to the next that every process of one picker should know.

    With several processes each has an instance of its own. What one comes to know it tells the others: plain values,
    such that to hear them a little late does no harm.

    Attributes:
        tell: tells the others; `None`: there are none.
    """

    tell: Callable[[Any], None] | None = None

    @abstractmethod
    def absorb(self, change: Any, peer: int, snapshot: Snapshot) -> None:
        """What process number `peer` told. `snapshot`: the pool as it is now."""

    def known(self) -> Iterable[Any]:
        """Changes that bring a newcomer up to date, each of which takes little time to make and to absorb."""
        return ()

    def forget_peer(self, peer: int) -> None:
        """The process has ended: what was true only while it lived is true no more."""


class _Described(Plugin):
    """A plugin that is only a description here: another room reads its `parameters` and does the work."""

    def __init__(self, name: str, parameters: Any, services: Services) -> None:
        super().__init__(name, parameters, services)
        self.parameters = parameters


class Parser(_Described):
    """Stands for a parser of an API; its place in `requestHandler.parsers` is its precedence."""


class DataSource(_Described):
    """Where endpoint signals come from, e.g. the metrics page of each server."""


class Extractor(_Described):
    """What is read out of a data source's page."""


class Discovery(_Described):
    """Where the pool's endpoints come from."""
