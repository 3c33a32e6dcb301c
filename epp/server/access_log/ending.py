"""How a request ended, by its record in Envoy's access log and by what we saw of it ourselves."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.director import Assignment, Director
from epp.endings import EndCause
from epp.inference.request import Usage
from epp.wire.access_log import Record


@dataclass(slots=True)
class Ending:
    """Ends one request when its record comes, or when it is clear that none will. Not frozen: each request makes one.

    Attributes:
        delivered: how it ended if nobody broke it off.
        otherwise: how it ended if there is no record.
        usage, response_bytes, token_events, counted_s: as far as we saw; see `epp.ledger.Outcome`.
        seen_s: when we saw its end; `None`: we did not.
    """

    director: Director
    assignment: Assignment
    clock: Callable[[], float]
    delivered: EndCause
    otherwise: EndCause
    usage: Usage
    response_bytes: int
    token_events: int
    counted_s: float | None
    seen_s: float | None = None

    def __call__(self, record: Record | None) -> None:
        if record is None:
            self._end(self.otherwise, self.usage, self.seen_s, self.response_bytes)
        else:
            self._end(
                record.cut_by or self.delivered,
                self._usage(record),
                self._ended_s(record),
                record.response_bytes or self.response_bytes,
            )

    def _end(self, cause: EndCause, usage: Usage, ended_s: float | None, response_bytes: int) -> None:
        self.director.end(
            self.assignment,
            cause,
            usage,
            self.token_events,
            counted_s=self.counted_s,
            ended_s=ended_s,
            response_bytes=response_bytes,
        )

    def _usage(self, record: Record) -> Usage:
        """Envoy read the whole response, we perhaps a part."""
        ours = self.usage
        return Usage(
            ours.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens,
            ours.completion_tokens if record.completion_tokens is None else record.completion_tokens,
            ours.cached_tokens if record.cached_tokens is None else record.cached_tokens,
        )

    def _ended_s(self, record: Record) -> float | None:
        """When the last byte came, on our clock. Envoy and we begin to count within a millisecond or so: with the
        headers of the request."""
        if record.last_byte_s is None:
            return self.seen_s
        assignment = self.assignment
        earliest_s = assignment.dispatched_s if assignment.first_token_s is None else assignment.first_token_s
        return min(max(assignment.received_s + record.last_byte_s, earliest_s), self.clock())
