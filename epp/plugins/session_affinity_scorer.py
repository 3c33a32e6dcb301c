"""Requests of one session go back to the server that served it before.

Two ways to know a session. `encoded_endpoint_header`: the response carries a token that names the server, and the
client sends it back; nothing is remembered here. `session_id`: the client sends an id of its own, and we remember
where it went.

Both come from the client, so neither can do more than prefer one of the request's own candidates: a token that names
anything else matches nothing, and what is remembered is bounded in number and time and holds no client text.
"""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator
from xxhash import xxh3_128_digest

from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import FloatArray
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Parameters, PreRequest, Replicated, ResponseHeadersHook, Scorer, Services, Stability

MAX_SESSIONS = 100_000
"""Sessions remembered at most; beyond it the one unused for longest is forgotten. About 250 bytes each."""

_SESSIONS_AT_ONCE = 1000  # of what a newcomer is told
_MAX_TOKEN_CHARS = 1024  # a Kubernetes namespace and name take at most 63 + 1 + 253 bytes before base64


class EncodedEndpointHeader(Parameters):
    header: str = Field("x-session-token", min_length=1, description="Request and response header of the token.")


class SessionIdSource(Parameters):
    header: str | None = Field(None, description="Request header that holds the session's id.")
    attribute: str | None = Field(None, description="Not available in this version.")
    producer: str | None = Field(None, description="Not available in this version.")

    @model_validator(mode="after")
    def _is_a_header(self) -> "SessionIdSource":
        if self.attribute is not None or self.producer is not None:
            raise ValueError("session ids from attributes are not available in this version; use a header")
        if not self.header:
            raise ValueError("a session id source needs a header")
        return self


class SessionId(Parameters):
    sources: list[SessionIdSource] = Field(
        default_factory=lambda: [SessionIdSource(header="x-session-id", attribute=None, producer=None)],
        min_length=1,
        description="Where to look for the id; the first that is present counts.",
    )
    eviction_ttl_seconds: float = Field(300.0, gt=0, description="A session unused for longer is forgotten.")
    eviction_sweep_seconds: float = Field(10.0, gt=0, description="How often forgotten sessions are swept out.")


class SessionAffinityParameters(Parameters):
    strategy: Literal["encoded_endpoint_header", "session_id"] = Field("encoded_endpoint_header")
    encoded_endpoint_header_config: EncodedEndpointHeader = Field(default_factory=EncodedEndpointHeader)
    session_id_config: SessionId = Field(default_factory=SessionId)
    profile_name: str = Field("", description="Profile whose choice a session is bound to; empty: the primary one.")


class SessionAffinityScorer(Scorer, PreRequest, ResponseHeadersHook, Replicated):
    """score = 1 for the session's server, 0 for all others; 0 for all when the session is new or its server is gone.

    A session id is bound to the server chosen for it, and bound anew only when that server is no longer a candidate:
    a detour because of load does not move the session.
    """

    plugin_type = "session-affinity-scorer"
    stability = Stability.ALPHA
    parameters_model = SessionAffinityParameters

    def __init__(self, name: str, parameters: SessionAffinityParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._by_token = parameters.strategy == "encoded_endpoint_header"
        self._token_header = parameters.encoded_endpoint_header_config.header.lower()
        self._id_headers = [source.header.lower() for source in parameters.session_id_config.sources if source.header]
        self._profile = parameters.profile_name
        self._sessions = Sessions(
            parameters.session_id_config.eviction_ttl_seconds, parameters.session_id_config.eviction_sweep_seconds
        )

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        endpoint_id = self._bound_endpoint_id(cycle)
        row = None if endpoint_id is None else candidates.snapshot.row_by_id.get(endpoint_id)
        return (candidates.rows == row).astype(np.float64) if row is not None else np.zeros(len(candidates))

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        session = None if self._by_token else self._session(cycle)
        result = decision.profiles.get(self._profile or decision.primary)
        if session is None or result is None or not result.picked:
            return
        bound_id = self._sessions.get(session, cycle.now_s)
        bound_row = None if bound_id is None else decision.snapshot.row_by_id.get(bound_id)
        row = bound_row if bound_row is not None and bound_row in result.rows else result.picked[0]
        endpoint_id = decision.snapshot.endpoints[row].id
        self._sessions.put(session, endpoint_id, cycle.now_s)
        if self.tell is not None:
            self.tell([(session, endpoint_id, cycle.now_s)])

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        if not self._by_token:
            return
        snapshot = decision.snapshot
        served_row = snapshot.row_by_address.get(served) if served is not None else None
        result = decision.profiles.get(self._profile) if self._profile else None
        if result is not None and result.picked:
            endpoint = snapshot.endpoints[result.picked[0]]
        elif served_row is not None:
            endpoint = snapshot.endpoints[served_row]
        else:
            endpoint = decision.endpoints[0]
        cycle.response_headers[self._token_header] = encode_token(endpoint.id)

    def absorb(self, change: Any, peer: int, snapshot: Snapshot) -> None:
        """Of two bindings of one session the later counts, so that all end up with the same."""
        for session, endpoint_id, used_s in change:
            if not self._sessions.was_used_since(session, used_s):
                self._sessions.put(session, endpoint_id, used_s)

    def known(self) -> Iterator[Any]:
        entries = iter(self._sessions.entries())
        while some := list(islice(entries, _SESSIONS_AT_ONCE)):
            yield some

    def dump_state(self) -> Mapping[str, Any] | None:
        return None if self._by_token else {"sessions": len(self._sessions)}

    def _bound_endpoint_id(self, cycle: Cycle) -> str | None:
        if self._by_token:
            return decode_token(cycle.request.headers.get(self._token_header))
        session = self._session(cycle)
        return None if session is None else self._sessions.get(session, cycle.now_s)

    def _session(self, cycle: Cycle) -> bytes | None:
        values = (cycle.request.headers.get(header) for header in self._id_headers)
        session = next(filter(None, values), None)
        return None if session is None else xxh3_128_digest(session.encode("utf-8", "surrogatepass"))


def encode_token(endpoint_id: str) -> str:
    return base64.b64encode(endpoint_id.encode()).decode()


def decode_token(token: str | None) -> str | None:
    """The endpoint id that a token names; `None` for anything that is not a token of ours."""
    if not token or len(token) > _MAX_TOKEN_CHARS:
        return None
    try:
        return base64.b64decode(token, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


class Sessions:
    """Session to endpoint id, by last use; bounded in number and age."""

    def __init__(self, ttl_s: float, sweep_s: float) -> None:
        self._ttl_s = ttl_s
        self._sweep_s = sweep_s
        self._next_sweep_s = float("-inf")
        self._entries: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, session: bytes, now_s: float) -> str | None:
        entry = self._entries.get(session)
        return None if entry is None or now_s - entry[1] > self._ttl_s else entry[0]

    def was_used_since(self, session: bytes, at_s: float) -> bool:
        entry = self._entries.get(session)
        return entry is not None and entry[1] >= at_s

    def entries(self) -> list[tuple[bytes, str, float]]:
        """Session, endpoint id and last use, the one unused for longest first."""
        return [(session, endpoint_id, used_s) for session, (endpoint_id, used_s) in self._entries.items()]

    def put(self, session: bytes, endpoint_id: str, now_s: float) -> None:
        self._entries[session] = (endpoint_id, now_s)
        self._entries.move_to_end(session)
        if len(self._entries) > MAX_SESSIONS:
            self._entries.popitem(last=False)
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + self._sweep_s
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        while self._entries:
            oldest, (_, used_s) = next(iter(self._entries.items()))
            if now_s - used_s <= self._ttl_s:
                return
            del self._entries[oldest]
