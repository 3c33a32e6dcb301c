"""Servers that are set up for prompts of some lengths get the prompts of those lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from epp.plugins._signals import NEUTRAL, neutral
from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DEFAULT_PROMPT, DataKey, FloatArray
from epp.scheduling.plugin import Filter, Parameters, Scorer, Services

_MALFORMED = (1, 0)  # a range that holds no length


class ContextLengthAwareParameters(Parameters):
    label: str = Field(
        "llm-d.ai/context-length-range", min_length=1, description="Endpoint label `min-max`, in prompt tokens."
    )
    enable_filtering: bool = Field(False, description="Also drop the servers whose range the prompt is not in.")


class ContextLengthAware(Filter, Scorer):
    """With L the prompt's tokens and `min-max` a server's range of width w = max − min:

    * L in range: 0.3 + 0.7 · (0.7 / (1 + w / 10000) + 0.3 · (max − L) / w), and 1 when w = 0: narrow and roomy is best;
    * out of range: 0.3 / (1 + d / 1000), with d the tokens that are missing to the range;
    * without the label 0.5; with one that cannot be read 0.

    A prompt of 1000 tokens scores 0.3 + 0.7 · (0.583 + 0.15) ≈ 0.813 on `0-2000`, and 0.15 on `2000-4000`.
    A prompt whose tokens are not known scores 0.5 everywhere, and filters nothing.
    """

    plugin_type = "context-length-aware"
    parameters_model = ContextLengthAwareParameters

    def __init__(self, name: str, parameters: ContextLengthAwareParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._label = parameters.label
        self._filters = parameters.enable_filtering

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (DEFAULT_PROMPT,)

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        prompt = cycle.get(DEFAULT_PROMPT)
        if prompt is None:
            return neutral(candidates)
        tokens = prompt.tokens
        return np.array([_score(range_, tokens) for range_ in self._ranges(candidates)])

    def filter(self, cycle: Cycle, candidates: Candidates) -> Candidates:
        prompt = cycle.get(DEFAULT_PROMPT)
        if prompt is None or not self._filters:
            return candidates
        tokens = prompt.tokens
        kept = [range_ is None or range_[0] <= tokens <= range_[1] for range_ in self._ranges(candidates)]
        return candidates.where(np.array(kept, dtype=np.bool_))

    def drop_reason(self) -> str:
        return "prompt length out of range"

    def _ranges(self, candidates: Candidates) -> list[tuple[int, int] | None]:
        return [_range(endpoint.labels.get(self._label)) for endpoint in candidates.endpoints]


def _range(label: str | None) -> tuple[int, int] | None:
    if label is None:
        return None
    low, _, high = label.partition("-")
    try:
        range_ = int(low), int(high)
    except ValueError:
        return _MALFORMED
    return range_ if 0 <= range_[0] <= range_[1] else _MALFORMED


def _score(range_: tuple[int, int] | None, tokens: int) -> float:
    if range_ is None:
        return NEUTRAL
    if range_ == _MALFORMED:
        return 0.0
    low, high = range_
    width = high - low
    if low <= tokens <= high:
        return 1.0 if width == 0 else 0.3 + 0.7 * (0.7 / (1 + width / 10_000) + 0.3 * (high - tokens) / width)
    return 0.3 / (1 + max(low - tokens, tokens - high) / 1000)
