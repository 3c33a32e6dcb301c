"""What is in flight on each endpoint: reserve when a decision is made, first token, release.

The ledger is one of the two doors that lead back from a request's end to the next decision. Its rule: reserve before
replying, release exactly once. Both ends are idempotent, keyed by our own stream id, so that however a stream dies its
counters return to where they were, and no counter is ever below zero. An endpoint that leaves the pool keeps its
entries until its last stream has ended: when it comes back under the same id, what still runs there is still counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epp.endings import EndCause
from epp.inference.request import Usage
from epp.pool.snapshot import FloatArray, Snapshot


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a routed request ended, as far as it is known. `None`: not known.

    Attributes:
        status: HTTP status of the model server's answer.
        streamed: the answer came as an event stream.
        served_endpoint_id: the endpoint that really answered; the first choice if Envoy does not say.
        received_s, dispatched_s, first_token_s, ended_s: monotonic seconds.
        usage: token counts by the model server's own word.
    """

    cause: EndCause
    status: int | None
    streamed: bool
    served_endpoint_id: str
    received_s: float
    dispatched_s: float
    first_token_s: float | None
    ended_s: float
    usage: Usage
    response_bytes: int = 0

    @property
    def ttft_ms(self) -> float | None:
        """Receipt to the first byte of the answer's body."""
        return None if self.first_token_s is None else (self.first_token_s - self.received_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; `None` unless streamed and with two or more tokens."""
        tokens = self.usage.completion_tokens
        if not self.streamed or self.first_token_s is None or tokens is None or tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) * 1e3 / (tokens - 1)


class InFlight(NamedTuple):
    """Reservations that have not been released, and the tokens they still hold."""

    requests: int
    tokens: int


class Load(NamedTuple):
    """The same, for every endpoint of a snapshot and in its order. The arrays belong to the caller."""

    requests: FloatArray
    tokens: FloatArray


@dataclass(slots=True)
class _Reservation:
    prefill_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.output_tokens


class Ledger:
    """See the module's text. All calls are O(1) but `load`, which is O(endpoints).

    A stream (`key`) holds one reservation on each endpoint that works for it: one as a rule, two when one server
    prefills and another decodes. For use from one thread.
    """

    def __init__(self) -> None:
        self._streams: dict[str, dict[str, _Reservation]] = {}
        self._by_endpoint: dict[str, InFlight] = {}
        self._total = InFlight(0, 0)
        # The same counts as arrays in the order of the snapshot last asked for, kept up to date by `_add`.
        self._endpoints_version: int | None = None
        self._row_by_id: Mapping[str, int] = {}
        self._requests: FloatArray = np.zeros(0)
        self._tokens: FloatArray = np.zeros(0)

    def reserve(self, key: str, endpoint_id: str, *, prefill_tokens: int, output_tokens: int = 0) -> None:
        """Book one request of stream `key` on an endpoint, with the tokens it has to prefill and to decode.

        Booked twice on one endpoint (which both prefills and decodes, say), it is one request with the larger amounts.
        """
        reservations = self._streams.setdefault(key, {})
        held = reservations.get(endpoint_id)
        wanted = _Reservation(max(prefill_tokens, 0), max(output_tokens, 0))
        if held is None:
            reservations[endpoint_id] = wanted
            self._add(endpoint_id, 1, wanted.tokens)
        else:
            self._merge(endpoint_id, held, wanted)

    def first_token(self, key: str) -> None:
        """The stream's prompt is prefilled: its prefill tokens are work no more."""
        for endpoint_id, held in self._streams.get(key, {}).items():
            self._add(endpoint_id, 0, -held.prefill_tokens)
            held.prefill_tokens = 0

    def move(self, key: str, from_endpoint_id: str, to_endpoint_id: str) -> None:
        """The stream is served elsewhere than planned: what it held on one endpoint it now holds on the other."""
        reservations = self._streams.get(key)
        if reservations is None or from_endpoint_id == to_endpoint_id:
            return
        moved = reservations.pop(from_endpoint_id, None)
        if moved is None:
            return
        self._add(from_endpoint_id, -1, -moved.tokens)
        held = reservations.get(to_endpoint_id)
        if held is None:
            reservations[to_endpoint_id] = moved
            self._add(to_endpoint_id, 1, moved.tokens)
        else:
            self._merge(to_endpoint_id, held, moved)

    def release(self, key: str) -> bool:
        """The stream has ended. True the first time; again, or for an unknown key, nothing happens."""
        reservations = self._streams.pop(key, None)
        if reservations is None:
            return False
        for endpoint_id, held in reservations.items():
            self._add(endpoint_id, -1, -held.tokens)
        return True

    def load(self, snapshot: Snapshot) -> Load:
        """What is in flight on each endpoint of `snapshot`, in its order."""
        if snapshot.endpoints_version != self._endpoints_version:
            self._endpoints_version = snapshot.endpoints_version
            self._row_by_id = snapshot.row_by_id
            counts = [self.in_flight(endpoint.id) for endpoint in snapshot.endpoints]
            self._requests = np.array([c.requests for c in counts], dtype=np.float64)
            self._tokens = np.array([c.tokens for c in counts], dtype=np.float64)
        return Load(self._requests.copy(), self._tokens.copy())

    def in_flight(self, endpoint_id: str) -> InFlight:
        """What is in flight on one endpoint, in the pool or not."""
        return self._by_endpoint.get(endpoint_id, _NOTHING)

    def totals(self) -> InFlight:
        """Over all endpoints. A stream with two reservations counts as two requests."""
        return self._total

    def open_streams(self) -> int:
        """Streams that have a reservation."""
        return len(self._streams)

    def _merge(self, endpoint_id: str, held: _Reservation, other: _Reservation) -> None:
        before = held.tokens
        held.prefill_tokens = max(held.prefill_tokens, other.prefill_tokens)
        held.output_tokens = max(held.output_tokens, other.output_tokens)
        self._add(endpoint_id, 0, held.tokens - before)

    def _add(self, endpoint_id: str, requests: int, tokens: int) -> None:
        """The only place where counters change. Endpoints with nothing in flight are forgotten."""
        before = self.in_flight(endpoint_id)
        now = InFlight(before.requests + requests, before.tokens + tokens)
        if now.requests:
            self._by_endpoint[endpoint_id] = now
        else:
            self._by_endpoint.pop(endpoint_id, None)
        self._total = InFlight(self._total.requests + requests, self._total.tokens + tokens)
        row = self._row_by_id.get(endpoint_id)
        if row is not None:
            self._requests[row] = now.requests
            self._tokens[row] = now.tokens


_NOTHING = InFlight(0, 0)
