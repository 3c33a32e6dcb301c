"""What can be made to go wrong with a simulated server."""

from enum import Enum

from pydantic import BaseModel, ConfigDict, Field


class MetricsFault(Enum):
    """What the metrics page shows."""

    NONE = "none"
    FROZEN = "frozen"  # the last page, for ever
    GARBAGE = "garbage"  # no metrics page at all
    HANG = "hang"  # never answers


class RequestFault(BaseModel):
    """What goes wrong with an inference request. By default nothing does.

    Attributes:
        hang: never answer, not even with headers.
        error_status: answer with this status at once.
        slow_start_ms: hold the answer back this long, in simulated ms.
        reset_after_tokens: reset the connection after so many tokens; 0 resets it before the first byte of an answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hang: bool = False
    error_status: int | None = Field(default=None, ge=400, le=599)
    slow_start_ms: float = Field(default=0.0, ge=0.0)
    reset_after_tokens: int | None = Field(default=None, ge=0)


class Faults(RequestFault):
    """All that is wrong with a server: the body of `POST /sim/faults`, which replaces what was wrong before.

    Attributes:
        next_requests: how many inference requests the request faults are for; `None`: until replaced.
        slow_factor: every engine step takes this many times longer.
        unhealthy: `/health` answers 503.
    """

    next_requests: int | None = Field(default=None, ge=1)
    slow_factor: float = Field(default=1.0, gt=0.0)
    unhealthy: bool = False
    metrics: MetricsFault = MetricsFault.NONE


class FaultState:
    """The faults in force, and how many more requests they are for."""

    def __init__(self) -> None:
        self.replace(Faults())

    def replace(self, faults: Faults) -> None:
        self.current = faults
        self._left = faults.next_requests

    def take(self) -> RequestFault:
        """The fault for the next inference request."""
        if self._left is None:
            return self.current
        if self._left == 0:
            return RequestFault()
        self._left -= 1
        return self.current
