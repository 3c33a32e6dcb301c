"""A server that has more of the prompt in its prefix cache is better."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from epp.scheduling.candidates import Candidates
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import PREFIX_MATCH, DataKey, FloatArray
from epp.scheduling.plugin import Parameters, Scorer, Services


class PrefixCacheParameters(Parameters):
    prefix_match_info_producer_name: str = Field("", description="Whose matches to read; empty: the default producer.")
    match_length_weight: float = Field(0.0, ge=0.0, le=1.0, description="Share of the score that looks at length.")
    match_length_scale_tokens: int = Field(8192, description="Matched tokens at which length scores in full.")

    @model_validator(mode="after")
    def _scale_is_positive_when_used(self) -> Self:
        if self.match_length_weight > 0 and self.match_length_scale_tokens <= 0:
            raise ValueError("matchLengthScaleTokens must be above 0 when matchLengthWeight is")
        return self


class PrefixCacheScorer(Scorer):
    """score = (1 − w) · matched / total + w · min(1, matched tokens / scale)², with w = matchLengthWeight.

    By default w = 0: 6 of 8 blocks cached score 0.75. With w = 0.5 and scale 8192, the same 6 of 8 blocks of 64 tokens
    score 0.5 · 0.75 + 0.5 · (384 / 8192)² ≈ 0.376: a short match is worth little, however complete. A prompt without a
    full block, or without a match, scores 0 everywhere.
    """

    plugin_type = "prefix-cache-scorer"
    parameters_model = PrefixCacheParameters

    def __init__(self, name: str, parameters: PrefixCacheParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._key = PREFIX_MATCH.by(parameters.prefix_match_info_producer_name)
        self._length_weight = parameters.match_length_weight
        self._scale_tokens = parameters.match_length_scale_tokens

    @property
    def consumes(self) -> Sequence[DataKey[Any]]:
        return (self._key,)

    def score(self, cycle: Cycle, candidates: Candidates) -> FloatArray:
        match = cycle.get(self._key)
        if match is None or match.total_blocks == 0:
            return np.zeros(len(candidates))
        ratio = candidates.take(match.ratio)
        if self._length_weight == 0.0:
            return ratio
        matched_tokens = candidates.take(match.match_blocks) * match.block_size_tokens
        length = np.minimum(1.0, matched_tokens / self._scale_tokens) ** 2
        return (1.0 - self._length_weight) * ratio + self._length_weight * length
