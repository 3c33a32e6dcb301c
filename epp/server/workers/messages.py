"""What the parent and its workers say to each other. Each kind has one content, which its comment names."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from epp.kube.policies import Rewrites
from epp.latency.predictor import PredictorState
from epp.observe.records import ALL, Selection
from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import EndpointSignals
from epp.server.tls import KeyPair


class Kind(IntEnum):
    """Of a frame."""

    # from the parent
    POOL = 1  # PoolChange
    HEALTH = 2  # Health
    POLICIES = 3  # Policies
    LEARNED = 4  # Learned
    ASK = 5  # Question
    TEACH = 6  # None; `worker` is a newcomer: tell it what you know
    GONE = 7  # None; `worker` has ended
    SHED = 8  # int: let go of so many connections
    DRAIN = 9  # float: end; open streams have so many seconds

    # from a worker
    READY = 16  # None: it knows the pool and serves
    CONNECTIONS = 17  # int: how many it has
    COUNTS = 18  # list of Count: what it counted since the last
    ANSWER = 19  # Answer
    SAMPLES = 20  # list of Sample
    DRAINED = 21  # None: its last word

    # from worker to worker, through the parent
    TOLD = 32  # Changes, to all others, with `worker` whom they are from
    TAUGHT = 33  # Changes, to the newcomer `worker`; an empty list is the last
    RECORDS = 34  # list of Record, to `worker`, which named their requests


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a worker is started with, beside the options of all.

    Attributes:
        life: how many the worker has had, with this one.
        taught: a peer will tell it what it knows.
        certificate: one that all share because nobody gave us one.
    """

    life: int
    taught: bool
    certificate: KeyPair | None


@dataclass(frozen=True, slots=True)
class PoolChange:
    """
    Attributes:
        endpoints: the whole pool, if its members have changed.
        slots: with it, the place of each in the shared memory, by id; who has none is counted by its worker alone.
        signals: by endpoint id, those that have changed.
    """

    endpoints: tuple[Endpoint, ...] | None
    slots: dict[str, int]
    signals: dict[str, EndpointSignals]


@dataclass(frozen=True, slots=True)
class Health:
    """The parent's.

    Attributes:
        reasons: why it is not ready.
        plugins: of these, the reasons of plugins.
        suspended: see `PickerState`.
    """

    reasons: list[str]
    plugins: list[str]
    draining: bool
    stopping: bool
    suspended: str | None


@dataclass(frozen=True, slots=True)
class Policies:
    """Of the pool; see `epp.kube.policies`."""

    objectives: dict[str, int]
    rewrites: Rewrites


@dataclass(frozen=True, slots=True)
class Learned:
    """
    Attributes:
        state: what the parent's predictor has learned, without its samples.
        has_model: False: the trees are those told last.
    """

    state: PredictorState
    has_model: bool


@dataclass(frozen=True, slots=True)
class Question:
    """
    Attributes:
        number: the answer carries it.
        what: `counts`, `state` or `plugins`.
        selection: which decisions are to be in the `state`.
    """

    number: int
    what: str
    selection: Selection = ALL


@dataclass(frozen=True, slots=True)
class Answer:
    """
    Attributes:
        content: plain values, for pages; to `counts` none, as these were sent just before.
    """

    number: int
    content: Any
