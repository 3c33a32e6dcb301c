"""What goes into a prediction, what comes out, and what is learned from: the doors of this room.

Nobody changes one of these once it is made; they are not frozen all the same, since every request makes several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from epp.pool.snapshot import FloatArray as FloatArray


class Target(StrEnum):
    """What is predicted, in milliseconds. Text, as it is a key in many tables: an `Enum` is hashed in Python."""

    TTFT = "ttft"  # dispatch to the first token
    TPOT = "tpot"  # per output token after the first
    E2E = "e2e"  # dispatch to the end, for answers that do not stream


class Source(StrEnum):
    """Where a prediction comes from."""

    PRIOR = "prior"  # the closed-form law
    MODEL = "model"  # the boosted trees


@dataclass(slots=True)
class Situation:
    """What is known of a request and of each candidate at the moment of decision. One row per candidate.

    Rows may also be of several requests: then what is said of the request has one number per row.

    Arrays have one float per candidate; NaN is not known. A row that lacks what a feature needs is still predicted if
    the model can do without, and is NaN in the prediction if not; it never spoils its neighbours.

    Attributes:
        endpoint_ids: one per row.
        prompt_tokens: of the request; NaN when the body is opaque.
        max_output_tokens: the client's cap; NaN without one.
        is_prefill: the endpoint only prefills (by its role label).
        uncached_tokens: prompt tokens that this endpoint would have to prefill.
        waiting_requests, running_requests, kv_cache_usage_ratio: by the server's own word.
        in_flight_requests: what we have sent there and has not ended.
        prefill_tokens_in_flight: uncached prompt tokens of those, of which no token has come back yet.
        decode_tokens_in_flight: context tokens (prompt and expected output) of those that are past their first token.
    """

    endpoint_ids: Sequence[str]
    prompt_tokens: float | FloatArray
    max_output_tokens: float | FloatArray
    is_prefill: npt.NDArray[np.bool_]
    uncached_tokens: FloatArray
    waiting_requests: FloatArray
    running_requests: FloatArray
    kv_cache_usage_ratio: FloatArray
    in_flight_requests: FloatArray
    prefill_tokens_in_flight: FloatArray
    decode_tokens_in_flight: FloatArray

    def __len__(self) -> int:
        return len(self.endpoint_ids)


@dataclass(slots=True)
class Estimate:
    """One target's prediction, one float per candidate, in milliseconds; NaN is no prediction.

    Attributes:
        mean_ms: the point prediction: what is as often too high as too low (the geometric mean).
        bound_ms: the calibrated upper bound at the quantile that was asked for; equals `mean_ms` if none was.
        base_ms: `mean_ms` without the endpoint's own bias, which is learned relative to it.
        spread: how uncertain each row is relative to the others, as a standard deviation of the logarithm.
    """

    mean_ms: FloatArray
    bound_ms: FloatArray
    base_ms: FloatArray
    spread: FloatArray
    source: Source


@dataclass(slots=True)
class Prediction:
    """What each candidate would take. `features` is what it was made from, and what a sample of it is learned from.

    Attributes:
        endpoint_ids: one per row.
        features: (candidates, features) float32, columns as in `epp.latency.features.FEATURES`.
        e2e: only when it was asked for.
        quantile: of the bounds; `None` if there are none.
        model_version: 0 is the prior alone.
    """

    endpoint_ids: Sequence[str]
    features: npt.NDArray[np.float32]
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate | None
    quantile: float | None
    model_version: int

    def promise(self, row: int) -> "Promise":
        """What was said of one candidate: small, and all that has to be kept until its request has ended."""
        targets: dict[Target, TargetPromise] = {}
        for target, estimate in ((Target.TTFT, self.ttft), (Target.TPOT, self.tpot), (Target.E2E, self.e2e)):
            if estimate is not None:
                mean_ms = float(estimate.mean_ms[row])
                if mean_ms == mean_ms:
                    targets[target] = TargetPromise(
                        mean_ms,
                        float(estimate.bound_ms[row]),
                        float(estimate.base_ms[row]),
                        float(estimate.spread[row]),
                        estimate.source,
                    )
        return Promise(self.features[row].copy(), targets, self.quantile, self.model_version)


class TargetPromise(NamedTuple):
    """One target of one row; fields as in `Estimate`."""

    mean_ms: float
    bound_ms: float
    base_ms: float
    spread: float
    source: Source


@dataclass(slots=True)
class Promise:
    """One row of a prediction. A target without a prediction is not in `targets`."""

    features: npt.NDArray[np.float32]
    targets: dict[Target, TargetPromise]
    quantile: float | None
    model_version: int

    def __str__(self) -> str:
        """For the decision record: what was promised, and by what."""
        parts = [f"{target} {said.bound_ms:.1f} ms" for target, said in self.targets.items()]
        sources = dict.fromkeys(said.source for said in self.targets.values())
        return f"{', '.join(parts)} by {' and '.join(sources)}, version {self.model_version}"


@dataclass(slots=True)
class Sample:
    """One request that really happened: what was promised at its decision, and what came.

    Attributes:
        at_s: when it ended, on the clock that predictions are made with.
        actual_ms: finite and positive; a target that was not observed (an answer that does not stream has no TPOT) is
            not in it.
    """

    endpoint_id: str
    promise: Promise
    at_s: float
    actual_ms: dict[Target, float]
