"""What is in flight on each endpoint: reserve when a decision is made, first token, release.

The ledger is one of the two doors that lead back from a request's end to the next decision. Its rule: reserve before
replying, release exactly once. Both ends are idempotent, keyed by our own stream id, so that however a stream dies its
counters return to where they were, and no counter is ever below zero. An endpoint that leaves the pool keeps its
entries until its last stream has ended: when it comes back under the same id, what still runs there is still counted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from epp.endings import EndCause
from epp.inference.request import Usage
from epp.pool.snapshot import FloatArray, Snapshot


class Outcome(NamedTuple):
    """How a routed request ended, as far as it is known. `None`: not known.

    Attributes:
        status: HTTP status of the model server's answer.
        streamed: the answer came as an event stream.
        served_endpoint_id: the endpoint that really answered; the first choice if Envoy does not say.
        received_s, dispatched_s, first_token_s, ended_s: monotonic seconds. The first token is that of a stream; of an
            answer that does not stream it is the first byte of the body.
        usage: token counts by the model server's own word.
        response_processing_s: our own work on the response, over all its messages.
        token_events: events of the stream that carried JSON, from the first token on: one or more tokens each.
        counted_s: when the last of them came, if they were not counted to the end.
        seen_bytes: of the response's body, as far as it passed us.
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
    response_processing_s: float = 0.0
    token_events: int = 0
    counted_s: float | None = None
    seen_bytes: int = 0

    @property
    def ttft_ms(self) -> float | None:
        """Receipt to the first token."""
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
    """The same, for every endpoint of a snapshot and in its order. The arrays belong to the caller.

    Attributes:
        tokens: prefill work that is not done, and output that is expected.
        prefill_tokens: the former alone.
        decode_tokens: context of the requests that are past their first token: what each of their steps attends to.
    """

    requests: FloatArray
    tokens: FloatArray
    prefill_tokens: FloatArray
    decode_tokens: FloatArray


class Peers(Protocol):
    """Other processes that pick for the same pool: what they have in flight counts here, and what we have, there."""

    def publish(self, endpoint_id: str, load: tuple[int, int, int, int]) -> None:
        """What we have in flight on an endpoint has changed; fields as in `Load`."""

    def load(self, snapshot: Snapshot, ours: FloatArray) -> FloatArray:
        """What is in flight with them and us. (4, endpoints), rows as the fields of `Load`; a new array."""

    def in_flight(self, endpoint_id: str) -> InFlight:
        """What they have in flight there."""


@dataclass(slots=True)
class _Reservation:
    prefill_tokens: int
    output_tokens: int
    context_tokens: int
    decoding: bool = False

    @property
    def decode_tokens(self) -> int:
        return self.context_tokens if self.decoding else 0


class _Counts:
    """What one endpoint holds."""

    __slots__ = ("decode_tokens", "output_tokens", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.requests = self.prefill_tokens = self.output_tokens = self.decode_tokens = 0

    def add(self, requests: int, prefill_tokens: int, output_tokens: int, decode_tokens: int) -> None:
        self.requests += requests
        self.prefill_tokens += prefill_tokens
        self.output_tokens += output_tokens
        self.decode_tokens += decode_tokens

    @property
    def in_flight(self) -> InFlight:
        return InFlight(self.requests, self.prefill_tokens + self.output_tokens)

    @property
    def load(self) -> tuple[int, int, int, int]:
        """In the order of `Load`'s fields."""
        return self.requests, self.prefill_tokens + self.output_tokens, self.prefill_tokens, self.decode_tokens


class Ledger:
    """See the module's text. All calls are O(1) but `load`, which is O(endpoints).

    A stream (`key`) holds one reservation on each endpoint that works for it: one as a rule, two when one server
    prefills and another decodes. For use from one thread.

    With `peers`, `load` and `in_flight` count what they have sent as well; streams and totals are always our own.
    """

    def __init__(self, peers: Peers | None = None) -> None:
        self._peers = peers
        self._streams: dict[str, dict[str, _Reservation]] = {}
        self._by_endpoint: dict[str, _Counts] = {}
        self._total = _Counts()
        # The same counts as one array, a row for each field of `Load`, in the order of the snapshot last asked for; but
        # for those that have changed since, which are written when somebody asks: one number costs numpy 0.1 µs.
        self._changed: set[str] = set()
        self._endpoints_version: int | None = None
        self._row_by_id: Mapping[str, int] = {}
        self._columns: FloatArray = np.zeros((4, 0))

    def reserve(
        self, key: str, endpoint_id: str, *, prefill_tokens: int, output_tokens: int = 0, context_tokens: int = 0
    ) -> None:
        """Book one request of stream `key` on an endpoint, with the tokens it has to prefill and to decode.

        `context_tokens` count as decoded from the first token on: the prompt, cached or not, and its expected output.
        Booked twice on one endpoint (which both prefills and decodes, say), it is one request with the larger amounts.
        """
        wanted = _Reservation(max(prefill_tokens, 0), max(output_tokens, 0), max(context_tokens, 0))
        reservations = self._streams.get(key)
        if reservations is None:
            self._streams[key] = {endpoint_id: wanted}
            self._add(endpoint_id, 1, wanted.prefill_tokens, wanted.output_tokens, 0)
        else:
            self._hold(reservations, endpoint_id, wanted)

    def first_token(self, key: str) -> None:
        """The stream's prompt is prefilled: its prefill tokens are work no more, and what it decodes is load."""
        for endpoint_id, held in self._streams.get(key, {}).items():
            before = held.decode_tokens
            held.decoding = True
            self._add(endpoint_id, 0, -held.prefill_tokens, 0, held.decode_tokens - before)
            held.prefill_tokens = 0

    def move(self, key: str, from_endpoint_id: str, to_endpoint_id: str) -> None:
        """The stream is served elsewhere than planned: what it held on one endpoint it now holds on the other."""
        reservations = self._streams.get(key)
        if reservations is None or from_endpoint_id == to_endpoint_id:
            return
        moved = reservations.pop(from_endpoint_id, None)
        if moved is not None:
            self._drop(from_endpoint_id, moved)
            self._hold(reservations, to_endpoint_id, moved)

    def release(self, key: str) -> bool:
        """The stream has ended. True the first time; again, or for an unknown key, nothing happens."""
        reservations = self._streams.pop(key, None)
        if reservations is None:
            return False
        for endpoint_id, held in reservations.items():
            self._drop(endpoint_id, held)
        return True

    def load(self, snapshot: Snapshot) -> Load:
        """What is in flight on each endpoint of `snapshot`, in its order."""
        if snapshot.endpoints_version != self._endpoints_version:
            self._endpoints_version = snapshot.endpoints_version
            self._row_by_id = snapshot.row_by_id
            self._columns = np.zeros((4, len(snapshot)))
            self._changed = set(self._by_endpoint)
        while self._changed:
            endpoint_id = self._changed.pop()
            row = self._row_by_id.get(endpoint_id)
            if row is not None:
                counts = self._by_endpoint.get(endpoint_id)
                self._columns[:, row] = (0, 0, 0, 0) if counts is None else counts.load
        if self._peers is None:
            return Load(*self._columns.copy())
        return Load(*self._peers.load(snapshot, self._columns))

    def in_flight(self, endpoint_id: str) -> InFlight:
        """What is in flight on one endpoint, in the pool or not."""
        counts = self._by_endpoint.get(endpoint_id)
        ours = InFlight(0, 0) if counts is None else counts.in_flight
        if self._peers is None:
            return ours
        theirs = self._peers.in_flight(endpoint_id)
        return InFlight(ours.requests + theirs.requests, ours.tokens + theirs.tokens)

    def publish(self) -> None:
        """Tell `peers` everything anew: they may have lost it, or keep it in another place from now on."""
        if self._peers is not None:
            for endpoint_id, counts in self._by_endpoint.items():
                self._peers.publish(endpoint_id, counts.load)

    def endpoints_in_flight(self, snapshot: Snapshot) -> Collection[str]:
        """Ids of the endpoints of `snapshot` on which anything is in flight."""
        return {snapshot.endpoints[row].id for row in np.flatnonzero(self.load(snapshot).requests)}

    def totals(self) -> InFlight:
        """Over all endpoints. A stream with two reservations counts as two requests."""
        return self._total.in_flight

    def open_streams(self) -> int:
        """Streams that have a reservation."""
        return len(self._streams)

    def _hold(self, reservations: dict[str, _Reservation], endpoint_id: str, wanted: _Reservation) -> None:
        held = reservations.get(endpoint_id)
        if held is None:
            requests, held = 1, _Reservation(0, 0, 0)
            reservations[endpoint_id] = held
        else:
            requests = 0
        prefill, output, decode = held.prefill_tokens, held.output_tokens, held.decode_tokens
        held.prefill_tokens = max(prefill, wanted.prefill_tokens)
        held.output_tokens = max(output, wanted.output_tokens)
        held.context_tokens = max(held.context_tokens, wanted.context_tokens)
        held.decoding = held.decoding or wanted.decoding
        self._add(
            endpoint_id,
            requests,
            held.prefill_tokens - prefill,
            held.output_tokens - output,
            held.decode_tokens - decode,
        )

    def _drop(self, endpoint_id: str, held: _Reservation) -> None:
        self._add(endpoint_id, -1, -held.prefill_tokens, -held.output_tokens, -held.decode_tokens)

    def _add(
        self, endpoint_id: str, requests: int, prefill_tokens: int, output_tokens: int, decode_tokens: int
    ) -> None:
        """The only place where counters change. Endpoints with nothing in flight are forgotten."""
        counts = self._by_endpoint.get(endpoint_id)
        if counts is None:
            counts = self._by_endpoint[endpoint_id] = _Counts()
        counts.add(requests, prefill_tokens, output_tokens, decode_tokens)
        self._total.add(requests, prefill_tokens, output_tokens, decode_tokens)
        if not counts.requests:
            del self._by_endpoint[endpoint_id]
        if endpoint_id in self._row_by_id:
            self._changed.add(endpoint_id)
        if self._peers is not None:
            self._peers.publish(endpoint_id, counts.load)
