"""How much of the prompt each server has probably cached, judged by what we sent where.

A request's prompts are hashed once in blocks; the index (`epp.prefix.index`) says how many blocks of the chain each
server has been sent before; and the chosen server's entry is written when it is chosen, not when it answers, so that
the second of two equal requests already finds the first.
"""

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from epp.plugins._prefill import prefill_row
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.prefix.hashing import block_hashes
from epp.prefix.index import PrefixIndex
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle, Observation
from epp.scheduling.data import DEFAULT_PROMPT, PREFIX_MATCH, DataKey, PrefixMatch
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import Parameters, PreRequest, Producer, Replicated, ResponseHeadersHook, Services

_log = logging.getLogger(__name__)

MIN_BLOCK_SIZE_TOKENS = 64
"""llm-d default. Smaller blocks cost memory and time in proportion and find next to nothing more."""

MAX_BLOCK_SIZE_TOKENS = 8192
"""A server that reports a larger block is not believed: its word would blind the index for the whole pool."""

_DEFAULT_BLOCK_SIZE_TOKENS = 16
_DUMPED_ENDPOINTS = 100
_BLOCKS_AT_ONCE = 4096  # of what a newcomer is told


class ApproxPrefixCacheParameters(Parameters):
    auto_tune: bool = Field(True, description="Take block size and capacity from the servers' own cache geometry.")
    block_size_tokens: int = Field(
        _DEFAULT_BLOCK_SIZE_TOKENS, description="Block size when servers do not say; at least 64 is used."
    )
    block_size: int | None = Field(None, description="Deprecated spelling of blockSizeTokens.")
    max_prefix_blocks_to_match: int = Field(
        2048, ge=0, description="Deprecated. Blocks looked at when maxPrefixTokensToMatch is 0; 0: all."
    )
    max_prefix_tokens_to_match: int = Field(131_072, ge=0, description="Tokens of a prompt that are looked at.")
    lru_capacity_per_server: int = Field(
        31_250, description="Blocks remembered per server when it does not say; 0 or less means 31250."
    )
    max_index_bytes: int = Field(256 * 2**20, gt=0, description="Memory of the whole index, whatever the pool's size.")

    @property
    def configured_block_size_tokens(self) -> int:
        if self.block_size is not None and self.block_size_tokens == _DEFAULT_BLOCK_SIZE_TOKENS:
            return self.block_size
        return self.block_size_tokens

    @model_validator(mode="after")
    def _block_size_is_positive_when_used(self) -> Self:
        if not self.auto_tune and self.configured_block_size_tokens <= 0:
            raise ValueError("blockSizeTokens must be above 0 when autoTune is off")
        return self


class ApproxPrefixCacheProducer(Producer, PreRequest, ResponseHeadersHook, Replicated):
    """Publishes, per server, how many blocks of the prompt it holds, contiguous from the start.

    *Block size*: at least 64 tokens. With autoTune the largest that any server of the pool reports, so that a block of
    ours is never finer than a server's. When it changes, prompts hash to new chains and old entries age out.

    *Capacity*: with autoTune, as many of our blocks as the server's own cache can hold: 4,000 blocks of 16 tokens are
    1,000 of our 64. Otherwise `lruCapacityPerServer`.

    *Prompts* are looked at up to `maxPrefixTokensToMatch`; only full blocks count, so a prompt below one block matches
    nowhere. Several prompts of one request add up.

    A server that leaves the pool, comes back under another address, or is restarted in place starts anew with nothing.
    """

    plugin_type = "approx-prefix-cache-producer"
    parameters_model = ApproxPrefixCacheParameters

    def __init__(self, name: str, parameters: ApproxPrefixCacheParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._auto_tune = parameters.auto_tune
        self._configured_block_size_tokens = max(parameters.configured_block_size_tokens, MIN_BLOCK_SIZE_TOKENS)
        self._max_tokens = parameters.max_prefix_tokens_to_match
        self._max_blocks = parameters.max_prefix_blocks_to_match
        capacity = parameters.lru_capacity_per_server
        self._default_capacity_blocks = capacity if capacity > 0 else 31_250
        self._index = PrefixIndex(parameters.max_index_bytes)
        self._key = PREFIX_MATCH.by(name)
        self._block_size_tokens = 0  # not known before the first snapshot
        self._snapshot: Snapshot | None = None
        self._endpoints_version: int | None = None
        self._address_by_id: dict[str, str] = {}
        self._restarts_by_id: dict[str, int] = {}

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (DEFAULT_PROMPT,)

    @property
    def produces(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    @property
    def indexed_blocks(self) -> int:
        """Size of the index."""
        return len(self._index)

    def produce(self, cycle: Cycle, candidates: Candidates) -> None:
        snapshot = candidates.snapshot
        if snapshot is not self._snapshot:
            self._follow(snapshot)
        block_size_tokens = self._block_size_tokens
        prompt = cycle.get(DEFAULT_PROMPT)
        chains: list[list[int]] = []
        total_blocks, matched = 0, None
        if prompt is not None:
            block_bytes, limit = block_size_tokens * prompt.bytes_per_token, self._block_limit
            for data in prompt.prompts:
                chain = block_hashes(data, prompt.seed, block_bytes, limit)
                held = self._index.match(chain, snapshot)
                matched = held if matched is None else matched + held
                total_blocks += len(chain)
                chains.append(chain)
        cycle.state[self.name] = chains
        if matched is None:
            matched = np.zeros(len(snapshot))
        cycle.data[self._key] = PrefixMatch(matched, total_blocks, block_size_tokens)

    def pre_request(self, cycle: Cycle, decision: Decision) -> None:
        chosen = decision.endpoints[0].id
        self._record(cycle, decision, chosen)
        prefill = prefill_row(decision)
        if prefill is not None and decision.snapshot.endpoints[prefill].id != chosen:
            self._record(cycle, decision, decision.snapshot.endpoints[prefill].id)
        match = cycle.get(self._key)
        if match is not None and match.total_blocks > 0:
            hit_blocks = float(match.match_blocks[decision.snapshot.row_by_id[chosen]])
            prompt = cycle.get(DEFAULT_PROMPT)
            block_bytes = match.block_size_tokens * prompt.bytes_per_token if prompt else 0
            self._observe(cycle, "prefix_indexer_size", self.indexed_blocks)
            self._observe(cycle, "prefix_indexer_hit_ratio", hit_blocks / match.total_blocks)
            self._observe(cycle, "prefix_indexer_hit_bytes", hit_blocks * block_bytes)

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        """A fallback served the request: it has the prompt cached now."""
        answering = decision.answered_by(served)
        if answering.id != decision.endpoints[0].id:
            self._record(cycle, decision, answering.id)
        cycle.state.pop(self.name, None)  # thousands of hashes are not kept for as long as the response takes

    def absorb(self, change: Any, peer: int, snapshot: Snapshot) -> None:
        if snapshot is not self._snapshot:
            self._follow(snapshot)
        endpoint_id, address, hashes = change
        if self._address_by_id.get(endpoint_id) == address:
            signals = snapshot.signals[snapshot.row_by_id[endpoint_id]]
            self._index.insert(endpoint_id, array("Q", hashes), self._capacity_blocks(signals))

    def known(self) -> Iterator[Any]:
        for endpoint_id, address in tuple(self._address_by_id.items()):
            blocks = self._index.blocks_of(endpoint_id)  # youngest first, to be inserted from the other end
            for start in reversed(range(0, len(blocks), _BLOCKS_AT_ONCE)):
                yield endpoint_id, address, array("Q", blocks[start : start + _BLOCKS_AT_ONCE]).tobytes()

    def dump_state(self) -> Mapping[str, Any]:
        blocks = sorted(self._index.blocks_by_endpoint().items(), key=lambda item: -item[1])
        return {
            "block_size_tokens": self._block_size_tokens,
            "blocks": len(self._index),
            "size_bytes": self._index.size_bytes,
            "blocks_by_endpoint": dict(blocks[:_DUMPED_ENDPOINTS]),
        }

    @property
    def _block_limit(self) -> int | None:
        """Blocks of a prompt that are looked at; `None`: all."""
        if self._max_tokens > 0:
            return self._max_tokens // self._block_size_tokens
        return self._max_blocks or None

    def _record(self, cycle: Cycle, decision: Decision, endpoint_id: str) -> None:
        """Enter the request's chains for an endpoint, unless it has left the pool since the decision's snapshot."""
        row = decision.snapshot.row_by_id[endpoint_id]
        if self._address_by_id.get(endpoint_id) != decision.snapshot.endpoints[row].address:
            return
        capacity_blocks = self._capacity_blocks(decision.snapshot.signals[row])
        for chain in cycle.state.get(self.name, ()):
            if chain:
                self._index.insert(endpoint_id, chain, capacity_blocks)
                if self.tell is not None:
                    self.tell((endpoint_id, self._address_by_id[endpoint_id], array("Q", chain).tobytes()))

    def _observe(self, cycle: Cycle, family: str, value: float) -> None:
        cycle.observations.append(Observation(family, value, self.name, self.plugin_type))

    def _capacity_blocks(self, signals: EndpointSignals) -> int:
        if self._auto_tune and signals.kv_blocks and signals.kv_block_size_tokens:
            return max(1, signals.kv_blocks * signals.kv_block_size_tokens // self._block_size_tokens)
        return self._default_capacity_blocks

    def _follow(self, snapshot: Snapshot) -> None:
        """Keep up with the pool: its block size, who has left it, and who has lost its cache."""
        if self._snapshot is not None and snapshot.version < self._snapshot.version:
            return  # of a request that was held: what it says has been overtaken
        if self._snapshot is not None and snapshot.caches is self._snapshot.caches:
            return  # same endpoints, same caches
        self._snapshot = snapshot
        block_size_tokens = self._block_size_of(snapshot)
        if block_size_tokens != self._block_size_tokens:
            _log.info("plugin %s: prefixes are matched in blocks of %d tokens", self.name, block_size_tokens)
            self._block_size_tokens = block_size_tokens
        if self._endpoints_version is None or snapshot.endpoints_version > self._endpoints_version:
            self._endpoints_version = snapshot.endpoints_version
            present = {endpoint.id: endpoint.address for endpoint in snapshot.endpoints}
            for endpoint_id, address in self._address_by_id.items():
                if present.get(endpoint_id) != address:
                    self._index.forget(endpoint_id)
            self._address_by_id = present
            self._restarts_by_id = {key: count for key, count in self._restarts_by_id.items() if key in present}
        for endpoint, signals in zip(snapshot.endpoints, snapshot.signals, strict=True):
            if signals.restarts is not None and self._restarts_by_id.get(endpoint.id) != signals.restarts:
                if endpoint.id in self._restarts_by_id:
                    self._index.forget(endpoint.id)
                self._restarts_by_id[endpoint.id] = signals.restarts

    def _block_size_of(self, snapshot: Snapshot) -> int:
        if self._auto_tune:
            reported = [s.kv_block_size_tokens for s in snapshot.signals if s.kv_block_size_tokens is not None]
            believed = [size for size in reported if 0 < size <= MAX_BLOCK_SIZE_TOKENS]
            if believed:
                return max(MIN_BLOCK_SIZE_TOKENS, *believed)
        return self._configured_block_size_tokens
