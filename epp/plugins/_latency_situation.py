"""What is known of a request and of its candidates, in the shape that the predictor asks for."""

import numpy as np

from epp.latency.types import Situation
from epp.plugins._signals import fresh
from epp.pool.snapshot import Snapshot
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import (
    DEFAULT_PROMPT,
    PREFIX_MATCH,
    BoolArray,
    DataKey,
    FloatArray,
    InFlightLoad,
    PrefixMatch,
)

PREFILL = "prefill"


class SituationReader:
    """Puts situations together. What only changes with the pool is kept from one request to the next.

    Args:
        role_label: endpoints with the value `prefill` under it only prefill; empty: none do.
        match_producer: whose prefix matches to read.

    Attributes:
        endpoint_ids, only_prefills: of the snapshot last followed, in its order.
    """

    def __init__(self, role_label: str, match_producer: str) -> None:
        self._role_label = role_label
        self.match_key: DataKey[PrefixMatch] = PREFIX_MATCH.by(match_producer)
        self._version: int | None = None
        self.endpoint_ids: tuple[str, ...] = ()
        self.only_prefills: BoolArray = np.zeros(0, dtype=np.bool_)

    def follow(self, snapshot: Snapshot) -> None:
        """From now on situations are of this snapshot."""
        if snapshot.endpoints_version == self._version:
            return
        self._version = snapshot.endpoints_version
        label = self._role_label
        self.endpoint_ids = tuple(endpoint.id for endpoint in snapshot.endpoints)
        self.only_prefills = np.array(
            [bool(label) and endpoint.labels.get(label) == PREFILL for endpoint in snapshot.endpoints], dtype=np.bool_
        )

    def read(self, cycle: Cycle, candidates: Candidates, load: InFlightLoad) -> Situation:
        """One row per candidate, of the snapshot last followed. Old metrics are not known."""
        request, snapshot, rows = cycle.request, candidates.snapshot, candidates.rows
        prompt, match = cycle.get(DEFAULT_PROMPT), cycle.get(self.match_key)
        prompt_tokens = np.nan if prompt is None else float(prompt.tokens)
        ids = self.endpoint_ids

        def signal(column: FloatArray) -> FloatArray:
            return fresh(column, candidates, cycle.now_s)

        return Situation(
            endpoint_ids=ids if candidates.everyone else [ids[row] for row in rows.tolist()],
            prompt_tokens=prompt_tokens,
            max_output_tokens=np.nan if request.max_output_tokens is None else float(request.max_output_tokens),
            is_prefill=candidates.take(self.only_prefills),
            uncached_tokens=np.full(len(rows), prompt_tokens)
            if match is None
            else candidates.take(match.uncached_tokens(prompt_tokens)),
            waiting_requests=signal(snapshot.waiting_requests),
            running_requests=signal(snapshot.running_requests),
            kv_cache_usage_ratio=signal(snapshot.kv_cache_usage_ratio),
            in_flight_requests=candidates.take(load.requests),
            prefill_tokens_in_flight=candidates.take(load.prefill_tokens),
            decode_tokens_in_flight=candidates.take(load.decode_tokens),
        )
