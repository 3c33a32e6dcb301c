"""The rows of llm-d's predictor API: what is in them, what is refused, and what they are to our predictor.

| field | here |
|---|---|
| `kv_cache_percentage` | `kv_cache_usage_ratio`: a fraction, whatever its name says |
| `input_token_length` | `prompt_tokens` |
| `prefix_cache_score` | `uncached_tokens` = (1 − score) · prompt tokens |
| `num_request_waiting` | `waiting_requests` |
| `num_request_running` | `in_flight_requests`: llm-d sends what its picker has in flight there |
| `prefill_tokens_in_flight`, `decode_tokens_in_flight` | the same |
| `pod_type` | `is_prefill`; servers of one type share a bias, as a row does not say which server it is about |
| `num_tokens_generated`, `encoder_*` | checked, not used: the first is constant, the rest is in the prompt's length |

In rows of what was measured, TPOT comes with a prefix score of 0 whatever the request's was, so TPOT is also asked for
with 0.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from epp.latency.types import Prediction, Situation, Target

Count = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

MOST_ROWS = 10_000
_NORMAL = NormalDist()
_LEAST_DEVIATIONS = 0.2


class PredictionRow(BaseModel):
    """One server's state and one request."""

    model_config = ConfigDict(frozen=True)

    kv_cache_percentage: Share
    input_token_length: Count
    num_request_waiting: Count
    num_request_running: Count
    num_tokens_generated: Count
    prefix_cache_score: Share
    pod_type: str | None = ""
    prefill_tokens_in_flight: Count = 0
    decode_tokens_in_flight: Count = 0
    encoder_matched_size: Count = 0
    encoder_input_size: Count = 0


class TrainingRow(PredictionRow):
    """And what came of it: 0 is not measured."""

    actual_ttft_ms: Milliseconds
    actual_tpot_ms: Milliseconds
    timestamp: datetime | None = None

    @property
    def actual_ms(self) -> dict[Target, float]:
        measured = {Target.TTFT: self.actual_ttft_ms, Target.TPOT: self.actual_tpot_ms}
        return {target: ms for target, ms in measured.items() if ms > 0.0}


class Flush(BaseModel):
    """What to forget."""

    flush_training_data: bool = True
    flush_test_data: bool = True
    flush_metrics: bool = True
    reason: str | None = Field(None, max_length=1000)


PREDICTION_ROW = TypeAdapter(PredictionRow)
TRAINING_ROW = TypeAdapter(TrainingRow)
FLUSH = TypeAdapter(Flush)


class Refused(Exception):
    """What was sent is not what the API takes.

    Attributes:
        detail: what is wrong where, one entry per mistake, as FastAPI words it.
    """

    def __init__(self, detail: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(f"{len(detail)} mistakes")
        self.detail = list(detail)


def mistake(kind: str, where: Sequence[str | int], message: str) -> dict[str, Any]:
    return {"type": kind, "loc": ["body", *where], "msg": message}


def mistakes(error: ValidationError, *where: str | int) -> list[dict[str, Any]]:
    """Without the values: they are the client's."""
    return [
        mistake(e["type"], (*where, *e["loc"]), e["msg"])
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def rows_in(body: Any, key: str) -> list[Any]:
    """The list under `key`, as it came, of at most 10,000 entries; `requests` are one at least. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused([mistake("model_attributes_type", (), "Input should be a valid dictionary")])
    if key not in body:
        raise Refused([mistake("missing", (key,), "Field required")])
    rows = body[key]
    if not isinstance(rows, list):
        raise Refused([mistake("list_type", (key,), "Input should be a valid list")])
    if not rows and key == "requests":
        raise Refused([mistake("too_short", (key,), "List should have at least 1 item after validation, not 0")])
    if len(rows) > MOST_ROWS:
        raise Refused([mistake("too_long", (key,), f"List should have at most {MOST_ROWS} items after validation")])
    return rows


def situation_of(rows: Sequence[PredictionRow]) -> Situation:
    """Twice as many rows: first those for TTFT, then, in the same order, those for TPOT."""

    def column(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.tile(np.array([getattr(row, name) for row in rows], dtype=np.float64), 2)

    pods = [pod_type_of(row) for row in rows]
    prompt = column("input_token_length")
    score = column("prefix_cache_score")
    score[len(rows) :] = 0.0
    unknown = np.full(2 * len(rows), np.nan)
    return Situation(
        endpoint_ids=pods * 2,
        prompt_tokens=prompt,
        max_output_tokens=unknown,
        is_prefill=np.array([pod == "prefill" for pod in pods] * 2, dtype=np.bool_),
        uncached_tokens=(1.0 - score) * prompt,
        waiting_requests=column("num_request_waiting"),
        running_requests=unknown,
        kv_cache_usage_ratio=column("kv_cache_percentage"),
        in_flight_requests=column("num_request_running"),
        prefill_tokens_in_flight=column("prefill_tokens_in_flight"),
        decode_tokens_in_flight=column("decode_tokens_in_flight"),
    )


def pod_type_of(row: PredictionRow) -> Literal["", "prefill", "decode"]:
    """What is none of these is of no known type."""
    match row.pod_type:
        case "prefill" | "decode" as known:
            return known
    return ""


def answers_of(
    prediction: Prediction,
    rows: int,
    ready: Mapping[Target, bool],
    common: dict[str, Any],
    *,
    as_bounds: bool,
) -> list[dict[str, Any]]:
    """One answer per row. A target that nothing was learned of yet is `null`.

    The uncertainty is a standard deviation: what the bound is above the mean, by how much a normal distribution's
    quantile is. Near the median that says nothing, and it is `null`.

    Args:
        prediction: of `situation_of`, with a quantile.
        ready: by target, whether there is enough to predict it.
        common: what all answers share.
        as_bounds: answers are the bounds, else the means.
    """
    deviations = 0.0 if prediction.quantile is None else _NORMAL.inv_cdf(prediction.quantile)
    columns: dict[str, list[Any]] = {}
    for target, estimate, start in ((Target.TTFT, prediction.ttft, 0), (Target.TPOT, prediction.tpot, rows)):
        bound_ms, mean_ms = (ms[start : start + rows] for ms in (estimate.bound_ms, estimate.mean_ms))
        said_ms = bound_ms if as_bounds else mean_ms
        known = ready[target]
        certain = known and abs(deviations) > _LEAST_DEVIATIONS
        uncertainty_ms = np.abs(bound_ms - mean_ms) / (abs(deviations) if certain else 1.0)
        between = np.stack([np.maximum(said_ms - 2.0 * uncertainty_ms, 0.0), said_ms + 2.0 * uncertainty_ms], axis=1)
        nothing = [None] * rows
        columns[f"{target.value}_ms"] = said_ms.tolist() if known else nothing
        columns[f"{target.value}_uncertainty"] = uncertainty_ms.tolist() if certain else nothing
        columns[f"{target.value}_prediction_bounds"] = between.tolist() if certain else nothing
    return [dict(zip(columns, values, strict=True)) | common for values in zip(*columns.values(), strict=True)]
