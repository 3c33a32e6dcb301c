"""How long one engine step takes: the step law, and its constants for known hardware.

An engine works in steps. Each step reads the whole model once (`base`), computes the prompt tokens scheduled into it
that the prefix cache did not have (`per_prefill_token`), and advances every sequence in the batch (`per_sequence`):

    step_ms = base_ms + prefill_token_us/1000 · uncached prefill tokens in step + sequence_us/1000 · sequences in step

The law was fitted to public measurements of vLLM 0.11 (inference-perf, Llama 3.1 8B on one H100; 4.6 % error in
sample), whose prompts were short. Attention grows with the context, which matters beyond some 10,000 tokens; two more
terms, 0 unless a machine's constants say otherwise, count what is attended to:

    + attention_pair_ns/10⁶ · pairs (new prompt token, token before it) + context_token_ns/10⁶ · context of the decoding
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Hardware:
    """The constants of the step law for one model on one kind of machine."""

    base_ms: float
    prefill_token_us: float
    sequence_us: float
    attention_pair_ns: float = 0.0
    context_token_ns: float = 0.0

    def step_ms(
        self, prefill_tokens: int, sequences: int, attention_pairs: float = 0.0, context_tokens: int = 0
    ) -> float:
        """Duration of one step without noise, in ms."""
        linear_us = self.prefill_token_us * prefill_tokens + self.sequence_us * sequences
        attention_ns = self.attention_pair_ns * attention_pairs + self.context_token_ns * context_tokens
        return self.base_ms + linear_us / 1e3 + attention_ns / 1e6

    def prefill_ms(self, uncached_tokens: int, prompt_tokens: int) -> float:
        """What computing the last so many tokens of a prompt adds to the steps it is done in. Each of them attends to
        all before it, and on average to half of themselves."""
        pairs = uncached_tokens * (prompt_tokens - uncached_tokens / 2)
        return self.step_ms(uncached_tokens, 0, pairs) - self.base_ms


HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {
        "8b-h100": Hardware(base_ms=7.2, prefill_token_us=18.5, sequence_us=34.0),  # our fit, see above
        "3b-h100": Hardware(base_ms=4.8, prefill_token_us=9.4, sequence_us=36.0),  # BLIS (inference-sim)
        "14b-h100": Hardware(base_ms=13.6, prefill_token_us=39.4, sequence_us=27.0),  # BLIS
        "8b-a100": Hardware(base_ms=11.8, prefill_token_us=59.0, sequence_us=34.0),  # scaled by bandwidth and FLOPs
        "8b-l40s": Hardware(base_ms=27.9, prefill_token_us=51.0, sequence_us=34.0),  # scaled likewise
        "70b-h100-tp4": Hardware(base_ms=12.6, prefill_token_us=76.0, sequence_us=67.0),  # BLIS
    }
)

STEP_NOISE_SIGMA = 0.05
"""Sigma of the lognormal factor on each step's duration."""

API_OVERHEAD_MS = (16.0, 20.0)
"""What HTTP, templates and tokenisation add to TTFT: uniform between these, in ms."""
