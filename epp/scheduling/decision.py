"""What the framework answers: a decision with its reasons, or a denial with its reason.

Nobody changes one once it is made; what every request makes is not frozen all the same, see `epp.scheduling.data`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.pool.endpoint import Endpoint
from epp.pool.snapshot import Snapshot
from epp.scheduling.data import FloatArray, IntArray


@dataclass(slots=True)
class FilterStep:
    """What one filter left over, and why it dropped the rest."""

    plugin: str
    before: int
    after: int
    reason: str


@dataclass(slots=True)
class ProfileResult:
    """One profile's run.

    Attributes:
        rows: the candidates that were scored, as snapshot rows.
        totals: weighted score per row of `rows`.
        scores: per scorer (instance name), its clamped score per row of `rows`, before the weight.
        picked: snapshot rows, first choice first.
        steps: what each filter did, in order.
    """

    profile: str
    rows: IntArray
    totals: FloatArray
    scores: Mapping[str, FloatArray]
    picked: tuple[int, ...]
    steps: tuple[FilterStep, ...] = ()


@dataclass(slots=True)
class Decision:
    """Where a request goes, and why.

    Attributes:
        endpoints: first choice, then fallbacks in order.
        primary: name of the profile whose pick is the destination.
        profiles: every profile that ran, by name; `None` for one that failed.
    """

    snapshot: Snapshot
    endpoints: tuple[Endpoint, ...]
    primary: str
    profiles: Mapping[str, ProfileResult | None]

    @property
    def destination(self) -> str:
        """Value of the destination header: all addresses, comma-joined, in order."""
        return ",".join(e.address for e in self.endpoints)

    def answered_by(self, served: str | None) -> Endpoint:
        """Who answers, by the address that the proxy names; the first choice if it names none that was in the pool."""
        row = None if served is None else self.snapshot.row_by_address.get(served)
        return self.endpoints[0] if row is None else self.snapshot.endpoints[row]


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is not sent on.

    Attributes:
        code: `BadRequest`, `ResourceExhausted`, … : the error code that clients, logs and metrics see.
        status: HTTP status.
        reason: value of the dropped-reason header: one word for machines.
        retry_after_s: for 429 and 503.
    """

    code: str
    status: int
    message: str
    reason: str
    retry_after_s: int | None = None

    @staticmethod
    def saturated(message: str) -> "Denial":
        return Denial("ResourceExhausted", 429, message, "rejected-saturated", 1)

    @staticmethod
    def no_endpoints(message: str) -> "Denial":
        return Denial("ServiceUnavailable", 503, message, "rejected-no-endpoints", 1)

    @staticmethod
    def bad_request(message: str) -> "Denial":
        return Denial("BadRequest", 400, message, "rejected-bad-request")

    @staticmethod
    def too_large(message: str) -> "Denial":
        return Denial("PayloadTooLarge", 413, message, "rejected-too-large")

    @staticmethod
    def too_slow(message: str) -> "Denial":
        return Denial("RequestTimeout", 408, message, "rejected-too-slow")

    @staticmethod
    def precondition_failed(message: str) -> "Denial":
        return Denial("PreconditionFailed", 412, message, "rejected-not-cached")
