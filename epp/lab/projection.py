"""What an engine would do with one more request, if nothing else came: its own scheduler, without noise, in big steps.

For the oracle alone. It follows the engine's rules (budget, slots, blocks, order) on three numbers per sequence. While
nobody is in prefill the batch only shrinks, and all steps until the next end are one.
"""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from epp.sim.engine import Engine
from epp.sim.sequence import Sequence


class Projected(NamedTuple):
    """Of the new request: seconds from now to its first token, and per token after it.

    Also: what its prompt alone would take, its tokens that are not cached, and the prompt tokens that are to be
    computed in all, its own included.
    """

    ttft_s: float
    tpot_s: float
    prefill_s: float
    uncached_tokens: int
    queued_tokens: int


@dataclass(slots=True)
class _Job:
    """A sequence, as far as it matters: tokens to prefill, tokens before these, tokens to produce."""

    prefill_tokens: int
    computed_tokens: int
    output_tokens: int
    is_new: bool = False


def project(engine: Engine, prompt_tokens: int, output_tokens: int, hashes: tuple[int, ...], now_s: float) -> Projected:
    """See the module's text."""
    config, scheduler = engine.config, engine.scheduler
    cached_tokens = len(scheduler.kv.match(hashes[: (prompt_tokens - 1) // config.block_tokens])) * config.block_tokens
    uncached_tokens = prompt_tokens - cached_tokens
    new = _Job(uncached_tokens, cached_tokens, output_tokens, is_new=True)
    prefilling = [_job(s) for s in scheduler.prefilling]
    waiting = [_job(s) for s in scheduler.waiting] + [_job(s) for _, s in engine.arriving] + [new]
    ends: list[tuple[int, int]] = []  # a heap: the step that makes a sequence's last token, and its context then
    context_tokens = decoding = 0
    for sequence in scheduler.running:
        if sequence.decoding_since is not None:
            produced = scheduler.decoders.produced_tokens(sequence)
            left = sequence.request.output_tokens - produced
            context = sequence.request.prompt_tokens + produced
            heapq.heappush(ends, (left, context + left))
            decoding += 1
            context_tokens += context
    free_tokens = scheduler.kv.free_blocks * config.block_tokens
    law, slow = config.hardware, engine.slow_factor
    queued_tokens = sum(job.prefill_tokens for job in (*prefilling, *waiting))
    alone_pairs = uncached_tokens * (cached_tokens + uncached_tokens / 2)
    prefill_s = law.step_ms(uncached_tokens, 1, alone_pairs) * slow / 1e3
    starts_s = max(engine.next_event_s() or now_s, now_s + sum(config.overhead_ms) / 2e3)
    clock_s, steps = starts_s - now_s, 0
    first_s: float | None = None
    first_step = last_step = 0
    while True:
        budget = config.max_batched_tokens - decoding
        prefill_tokens, pairs = 0, 0.0
        finished: list[_Job] = []
        while budget > 0 and (prefilling or waiting):
            if not prefilling:
                job = waiting[0]
                if decoding + len(finished) >= config.max_sequences or (
                    job.prefill_tokens > free_tokens and decoding + len(finished)
                ):
                    break
                prefilling.append(waiting.pop(0))
                free_tokens -= job.prefill_tokens
            job = prefilling[0]
            tokens = min(job.prefill_tokens, budget)
            prefill_tokens += tokens
            pairs += tokens * (job.computed_tokens + tokens / 2)
            budget -= tokens
            job.prefill_tokens -= tokens
            job.computed_tokens += tokens
            if job.prefill_tokens:
                break
            finished.append(prefilling.pop(0))
        batch = decoding + len(finished) + len(prefilling)
        if prefill_tokens:
            count = 1
        elif ends:
            count = max(1, ends[0][0] - steps)
        else:
            break
        grown = decoding * (count - 1) / 2
        step_ms = law.step_ms(prefill_tokens, batch, pairs, int(context_tokens + grown))
        if first_s is not None and last_step <= steps + count:
            count = last_step - steps
        clock_s += count * step_ms * slow / 1e3
        steps += count
        context_tokens += decoding * count
        free_tokens -= decoding * count
        while ends and ends[0][0] <= steps:
            _, context = heapq.heappop(ends)
            context_tokens -= context
            free_tokens += context
            decoding -= 1
        for job in finished:
            if job.is_new:
                first_s, first_step, last_step = clock_s, steps, steps + job.output_tokens - 1
            if job.output_tokens > 1:
                context = job.computed_tokens
                heapq.heappush(ends, (steps + job.output_tokens - 1, context + job.output_tokens - 1))
                context_tokens += context
                decoding += 1
        if first_s is not None and steps >= last_step:
            break
    if first_s is None:
        return Projected(float("inf"), float("inf"), prefill_s, uncached_tokens, queued_tokens)
    tokens = max(last_step - first_step, 1)
    return Projected(first_s, (clock_s - first_s) / tokens, prefill_s, uncached_tokens, queued_tokens)


def _job(sequence: Sequence) -> _Job:
    request = sequence.request
    computed = sequence.computed_tokens
    return _Job(sequence.tokens - computed, computed, request.output_tokens - sequence.produced_tokens)
