"""Who computes what in the next step: the scheduler of a simulated engine, after vLLM's.

A budget of tokens is handed out: first to the running sequences (one token each to those that decode, as much as is
left to those still in prefill), then to waiting ones in order of arrival, as long as slots, budget and KV blocks last.
When a running sequence finds no free block, the youngest one is preempted: it loses its blocks, waits at the head of
the line and will be computed anew. Nothing is admitted in a step that preempts.

No sequence is too long for the empty cache (the engine sees to it), so whatever heads the line can run at last.

Sequences that decode are not visited in each step; they are counted (see `Decoders`). So a step costs what changes in
it, however large the batch, and hours can be simulated in seconds.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from epp.sim.config import EngineConfig
from epp.sim.decoders import Decoders
from epp.sim.kvcache import KvCache
from epp.sim.sequence import Sequence
from epp.sim.types import EngineMetrics


@dataclass(slots=True)
class Step:
    """What one step computes: a token for each of `decoding` sequences, and these prompt tokens.

    Attributes:
        context_tokens: what the decoding sequences attend to.
        attention_pairs: of a prompt token computed now and a token before it.
    """

    decoding: int = 0
    context_tokens: int = 0
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    attention_pairs: float = 0.0

    def add_prefill(self, sequence: Sequence, tokens: int) -> None:
        before = sequence.computed_tokens
        self.prefills.append((sequence, tokens))
        self.prefill_tokens += tokens
        self.attention_pairs += tokens * (before + tokens / 2)


class Scheduler:
    """The batch, the line before it, and the KV cache they share.

    Attributes:
        running: in order of admission; the decoding ones are in `decoders` too, the others in `prefilling`.
        waiting: in order of service.
    """

    def __init__(self, config: EngineConfig, totals: EngineMetrics) -> None:
        self._config = config
        self._totals = totals
        self.kv = KvCache(config.kv_blocks)
        self.running: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.decoders = Decoders(config.block_tokens)
        self.waiting: deque[Sequence] = deque()
        self._refused_at: tuple[Sequence, int, int] | None = None  # who found too few blocks, and in which cache

    @property
    def preemptions(self) -> int:
        """How many there have been."""
        return self._totals.preemptions_total

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot and blocks are free at once."""
        if sequence in self.running:
            del self.running[sequence]
            self.prefilling.pop(sequence, None)
            self.decoders.remove(sequence)
            self._publish(sequence, sequence.computed_tokens)  # what was generated, for a next turn to find
            self.kv.release(sequence.blocks)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> Step | None:
        """The next step's work; `None` when there is none."""
        preempted = self._make_room_for_decoding()
        decoders = self.decoders
        step = Step(decoders.count, decoders.context_tokens)
        if not self.prefilling and not self.waiting:  # as a rule
            return step if step.decoding else None
        budget = self._config.max_batched_tokens - step.decoding
        if self.prefilling:
            for sequence in list(self.prefilling):
                if budget <= 0 or sequence not in self.prefilling:
                    continue
                tokens = min(sequence.tokens - sequence.computed_tokens, budget)
                while not self._cover(sequence, tokens):
                    preempted = True
                    if self._preempt_youngest() is sequence:
                        break
                else:
                    step.add_prefill(sequence, tokens)
                    budget -= tokens
            if preempted:  # who was preempted after his turn decodes no more
                step.decoding, step.context_tokens = decoders.count, decoders.context_tokens
        if self.waiting and not preempted:
            self._admit(step, budget)
        return step if step.decoding or step.prefills else None

    def goes_on(self, step: Step) -> bool:
        """`finish` and `schedule` in one, where all that happens is that the same sequences decode on: most steps of a
        long answer. Then `step` is the next one. Otherwise nothing has changed."""
        decoders = self.decoders
        if step.prefills or self.prefilling or self.waiting or not decoders.count or decoders.next_ends:
            return False
        growing = decoders.growing_next
        if growing and not self._grow(growing):
            return False
        decoders.advance()
        step.decoding, step.context_tokens = decoders.count, decoders.context_tokens
        return True

    def finish(self, step: Step) -> tuple[list[Sequence], list[Sequence]]:
        """The step is over. Who got its last token by decoding, and who its prompt computed; both may be gone since."""
        ended = self.decoders.advance()
        computed = []
        for sequence, tokens in step.prefills:
            if sequence not in self.prefilling:
                continue
            sequence.computed_tokens += tokens
            if sequence.computed_tokens == sequence.tokens:
                del self.prefilling[sequence]
                sequence.produced_tokens += 1
                computed.append(sequence)
                if not sequence.is_done:
                    self.decoders.add(sequence)
        return ended, computed

    # --- room for those that run ------------------------------------------------------------------------------------

    def _make_room_for_decoding(self) -> bool:
        """A block for each sequence whose next token begins one. True if somebody had to be preempted for it."""
        growing = self.decoders.growing
        if not growing:
            return False
        if self._grow(growing):
            return False
        preempted = False
        for sequence in [s for s in self.running if s in growing]:
            while sequence in self.running:
                found = self.kv.hold((), 1)
                if found is not None:
                    sequence.blocks += found
                    break
                preempted = True
                self._preempt_youngest()
        return preempted

    def _grow(self, growing: Collection[Sequence]) -> bool:
        """A block for each; False, and nothing done, if there are too few."""
        fresh = self.kv.hold((), len(growing))
        if fresh is None:
            return False
        for sequence, block in zip(growing, fresh, strict=True):
            sequence.blocks.append(block)
        return True

    def _cover(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure that the sequence's blocks can take `tokens` more; False if the cache has not enough free ones."""
        covered = sequence.computed_tokens + tokens
        missing = _blocks_for(covered, self._config.block_tokens) - len(sequence.blocks)
        if missing > 0:
            fresh = self.kv.hold((), missing)
            if fresh is None:
                return False
            sequence.blocks += fresh
        self._publish(sequence, covered)
        return True

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        """Let others find the full blocks among the first `tokens` tokens: they are, or are being, computed."""
        if not self._config.prefix_caching:
            return
        hashes = sequence.request.block_hashes
        done, full = sequence.published_blocks, min(tokens // self._config.block_tokens, len(hashes))
        if full > done:
            self.kv.publish(sequence.blocks[done:full], hashes[done:full])
            sequence.published_blocks = full

    def _preempt_youngest(self) -> Sequence:
        sequence, _ = self.running.popitem()
        self.prefilling.pop(sequence, None)
        self.decoders.remove(sequence)
        self.kv.release(sequence.blocks)
        sequence.blocks = []
        self.waiting.appendleft(sequence)
        self._totals.preemptions_total += 1
        return sequence

    # --- room for those that wait -----------------------------------------------------------------------------------

    def _admit(self, step: Step, budget: int) -> None:
        """Move waiting sequences into the batch, in order; those whose adapter finds no place are passed over."""
        deferred: list[Sequence] = []
        adapters: set[str] | None = None  # looked up when somebody wants one
        while self.waiting and budget > 0 and len(self.running) < self._config.max_sequences:
            sequence = self.waiting[0]
            adapter = sequence.request.adapter
            if adapter is not None:
                adapters = set(adapters_of(self.running)) if adapters is None else adapters
                if adapter not in adapters and len(adapters) >= self._config.max_adapters:
                    deferred.append(self.waiting.popleft())
                    continue
            tokens = self._enter(sequence, budget)
            if tokens is None:
                break
            if adapter is not None and adapters is not None:
                adapters.add(adapter)
            budget -= tokens
            self.waiting.popleft()
            self.running[sequence] = self.prefilling[sequence] = None
            step.add_prefill(sequence, tokens)
        self.waiting.extendleft(reversed(deferred))

    def _enter(self, sequence: Sequence, budget: int) -> int | None:
        """Give a sequence its first blocks; the tokens to compute for it, or `None` if too few blocks are free."""
        if self._refused_at is not None and self._refused_at[0] is sequence:
            _, free_blocks, published = self._refused_at
            if self.kv.free_blocks <= free_blocks and self.kv.published == published:
                return None  # nothing came free since and no match can have grown
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
            self._refused_at = (sequence, self.kv.free_blocks, self.kv.published)
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
