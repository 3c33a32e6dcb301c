"""What is tried in the lab, and what comes of it: servers, requests, changes of the pool, experiments and results.

See `epp.lab.world`, which runs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epp.lab.prompts import Prompt, Segment
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.types import Source, Target
from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Plugin, Services
from epp.sim.config import EngineConfig

if TYPE_CHECKING:
    from epp.lab.workloads.workload import Targets


@dataclass(frozen=True, slots=True)
class LabServer:
    """One simulated server; `name` is the endpoint's."""

    name: str
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("default", self.name, self.name, 8000)


def alike(servers: int, engine: EngineConfig | None = None) -> tuple[LabServer, ...]:
    """`sim-0`, `sim-1`, …"""
    return tuple(LabServer(f"sim-{i}", engine or EngineConfig()) for i in range(servers))


@dataclass(frozen=True, slots=True)
class LabRequest:
    """One request of a schedule.

    Attributes:
        at_s: when it arrives, in seconds after the start.
        output_tokens: how long its answer will be. Nobody knows but the server, and the oracle.
        max_output_tokens: what the client set as a limit, which the picker reads; `None`: nothing.
        answer: the answer as a segment of `output_tokens`, if a later prompt repeats it.
        headers: what the picker reads, latency targets among them. Shared between requests.
        targets: its own, whatever those of its workload or its run are; `None`: it has those.
    """

    at_s: float
    prompt: Prompt
    output_tokens: int
    streaming: bool = True
    max_output_tokens: int | None = None
    answer: Segment | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    targets: "Targets | None" = None


@dataclass(frozen=True, slots=True)
class Slows:
    """From now on every step of this server takes `factor` times as long."""

    at_s: float
    server: str
    factor: float


@dataclass(frozen=True, slots=True)
class Fails:
    """From now on this server answers new requests with 500, after 2 ms."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Recovers:
    """The end of `Fails`."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Dies:
    """What runs there breaks off, new requests get 503, its metrics page is gone."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Restarts:
    """It is there (again), with an empty cache, in the pool and at full speed. Whatever ran there breaks off."""

    at_s: float
    server: str


@dataclass(frozen=True, slots=True)
class Joins:
    at_s: float
    server: LabServer


@dataclass(frozen=True, slots=True)
class Leaves:
    """Nothing new is sent there; what runs there ends well."""

    at_s: float
    server: str


Change = Slows | Fails | Recovers | Dies | Restarts | Joins | Leaves

ServicesOf = Callable[[Services, Any], Services]


def only_what_a_picker_has(services: Services, world: Any) -> Services:
    """Ledger and predictor: what every policy gets."""
    return services


@dataclass(frozen=True, slots=True)
class Experiment:
    """
    Attributes:
        config_text: the picker's EndpointPickerConfig.
        schedule: in order of time.
        changes: of the pool, while it runs.
        plugins: plugin types beyond the picker's own that the configuration may name.
        services_of: makes what plugins may hold on to out of the picker's services and the world; the oracle's alone
            takes anything of the latter.
        quantiles: of which bounds are noted with each prediction. The decision does not see them.
        training_delay_s: from a training job to its model being served.
        metrics_interval_ms: bounds; each server draws its own. `None`: no metrics page is ever read.
        config_name: of the configuration, for what is wrong in it.
    """

    config_text: str
    servers: Sequence[LabServer]
    schedule: Sequence[LabRequest]
    changes: Sequence[Change] = ()
    seed: int = 1
    predictor: PredictorOptions = field(default_factory=PredictorOptions)
    plugins: Sequence[type[Plugin]] = ()
    services_of: ServicesOf = only_what_a_picker_has
    quantiles: Sequence[float] = ()
    training_delay_s: float = 1.0
    metrics_interval_ms: tuple[float, float] | None = (50.0, 100.0)
    config_name: str = "configuration"


@dataclass(frozen=True, slots=True)
class Promised:
    """What was predicted of one target for the server that was chosen, at the decision."""

    mean_ms: float
    bounds_ms: Mapping[float, float]
    source: Source


@dataclass(slots=True)
class Served:
    """One request.

    Attributes:
        server: `None` if the picker refused it.
        note: what the predicting plugin said: what it predicted, or why it did not.
        status: 429 and the like if the picker refused it; `None` until it is answered, or if the answer broke off.
        cached_tokens: of the prompt, found in the server's cache.
        actual_ms: from dispatch; TTFT and TPOT of a stream, E2E of any other answer; nothing of an error.
        targets: its own, as in `LabRequest`.
    """

    number: int
    at_s: float
    server: str | None = None
    note: str = ""
    status: int | None = None
    streamed: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    promised: dict[Target, Promised] = field(default_factory=dict)
    actual_ms: dict[Target, float] = field(default_factory=dict)
    ended_s: float | None = None
    targets: "Targets | None" = None


@dataclass(frozen=True, slots=True)
class LabResult:
    """
    Attributes:
        served: every request of the schedule, in its order.
        published_s: when models were published.
        plugin_failures: by plugin type; a plugin that raises costs quality silently, but not here.
        busy_s: per server, how long its engine computed.
        preemptions: over all engines.
        predictor: as it was at the end.
    """

    served: tuple[Served, ...]
    published_s: tuple[float, ...]
    plugin_failures: Mapping[str, int]
    busy_s: Mapping[str, float]
    preemptions: int
    predictor: Predictor
