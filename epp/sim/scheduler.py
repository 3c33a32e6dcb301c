"""Who computes what in the next step: the scheduler of a simulated engine, after vLLM's.

A budget of tokens is handed out: first to the running sequences (one token each to those that decode, as much as is
left to those still in prefill), then to waiting ones in order of arrival, as long as slots, budget and KV blocks last.
When a running sequence finds no free block, the youngest one is preempted: it loses its blocks, waits at the head of
the line and will be computed anew. Nothing is admitted in a step that preempts.

No sequence is too long for the empty cache (the engine sees to it), so whatever heads the line can run at last.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from epp.sim.config import EngineConfig
from epp.sim.kvcache import KvCache
from epp.sim.types import EngineMetrics, SimRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine. Without blocks it has nothing computed."""

    request: SimRequest
    blocks: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    produced_tokens: int = 0
    published_blocks: int = 0
    cached_tokens: int | None = None  # None: has never run

    @property
    def tokens(self) -> int:
        """Prompt and output so far: what has to be computed before the next token comes."""
        return self.request.prompt_tokens + self.produced_tokens


class Scheduler:
    """The batch, the line before it, and the KV cache they share.

    Attributes:
        running: in order of admission.
        waiting: in order of service.
    """

    def __init__(self, config: EngineConfig, totals: EngineMetrics) -> None:
        self._config = config
        self._totals = totals
        self.kv = KvCache(config.kv_blocks)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot and blocks are free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.kv.release(sequence.blocks)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> tuple[list[tuple[Sequence, int]], int]:
        """The next step's work: how many tokens each sequence computes, and how many of these all are prefill."""
        work: list[tuple[Sequence, int]] = []
        budget = self._config.max_batched_tokens
        prefill_tokens = 0
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            tokens = min(sequence.tokens - sequence.computed_tokens, budget)
            while not self._cover(sequence, tokens):
                preempted = True
                if self._preempt_youngest() is sequence:
                    break
            else:
                work.append((sequence, tokens))
                budget -= tokens
                if sequence.computed_tokens < sequence.request.prompt_tokens or tokens > 1:
                    prefill_tokens += tokens
                position += 1
        if not preempted:
            for sequence, tokens in self._admit(budget):
                work.append((sequence, tokens))
                prefill_tokens += tokens
        return work, prefill_tokens

    def _cover(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure that the sequence's blocks can take `tokens` more; False if the cache has not enough free ones."""
        covered = sequence.computed_tokens + tokens
        missing = _blocks_for(covered, self._config.block_tokens) - len(sequence.blocks)
        if missing > 0:
            fresh = self.kv.hold((), missing)
            if fresh is None:
                return False
            sequence.blocks += fresh
        if sequence.published_blocks < len(sequence.request.block_hashes):
            self._publish(sequence, covered)
        return True

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        """Let others find the full prompt blocks among the first `tokens` tokens: this step computes them."""
        hashes = sequence.request.block_hashes
        if not self._config.prefix_caching:
            return
        full = min(tokens // self._config.block_tokens, len(hashes))
        for i in range(sequence.published_blocks, full):
            self.kv.publish(sequence.blocks[i], hashes[i])
        sequence.published_blocks = full

    def _preempt_youngest(self) -> Sequence:
        sequence = self.running.pop()
        self.kv.release(sequence.blocks)
        sequence.blocks = []
        self.waiting.appendleft(sequence)
        self._totals.preemptions_total += 1
        return sequence

    def _admit(self, budget: int) -> list[tuple[Sequence, int]]:
        """Move waiting sequences into the batch, in order; those whose adapter finds no place are passed over."""
        if not self.waiting:
            return []
        admitted: list[tuple[Sequence, int]] = []
        deferred: list[Sequence] = []
        adapters = set(adapters_of(self.running))
        while self.waiting and budget > 0 and len(self.running) < self._config.max_sequences:
            sequence = self.waiting[0]
            adapter = sequence.request.adapter
            if adapter is not None and adapter not in adapters and len(adapters) >= self._config.max_adapters:
                deferred.append(self.waiting.popleft())
                continue
            tokens = self._enter(sequence, budget)
            if tokens is None:
                break
            if adapter is not None:
                adapters.add(adapter)
            budget -= tokens
            self.running.append(self.waiting.popleft())
            admitted.append((sequence, tokens))
        self.waiting.extendleft(reversed(deferred))
        return admitted

    def _enter(self, sequence: Sequence, budget: int) -> int | None:
        """Give a sequence its first blocks; the tokens to compute for it, or `None` if too few blocks are free."""
        block_tokens = self._config.block_tokens
        matched: list[int] = []
        if self._config.prefix_caching:
            # The last token is always computed: it is what the first output token comes from.
            usable = (sequence.tokens - 1) // block_tokens
            matched = self.kv.match(sequence.request.block_hashes[:usable])
        cached_tokens = len(matched) * block_tokens
        tokens = min(sequence.tokens - cached_tokens, budget)
        blocks = self.kv.hold(matched, _blocks_for(cached_tokens + tokens, block_tokens) - len(matched))
        if blocks is None:
            return None
        sequence.blocks = blocks
        sequence.computed_tokens = cached_tokens
        sequence.published_blocks = len(matched)
        self._publish(sequence, cached_tokens + tokens)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached_tokens
            self._totals.prompt_tokens_total += sequence.request.prompt_tokens
            self._totals.prefix_queries_total += sequence.request.prompt_tokens
            self._totals.prefix_hits_total += cached_tokens
        return tokens


def _blocks_for(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


def adapters_of(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    """The LoRA adapters in use, sorted."""
    return tuple(sorted({s.request.adapter for s in sequences if s.request.adapter is not None}))
