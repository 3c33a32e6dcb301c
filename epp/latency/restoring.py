"""What `epp.latency.persistence` has written, read again.

Whatever is off (another version, other features, a bit that fell over) leads to a clean "untrained" with its reason,
never to an exception and never to a wrong prediction.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from epp.latency.boosters import opened, saved
from epp.latency.buffer import Rows, bucket_of
from epp.latency.features import FEATURE_SET_HASH, FEATURES
from epp.latency.model import Model, TargetTrees
from epp.latency.persistence import header_of
from epp.latency.predictor import Predictor, PredictorOptions, PredictorState
from epp.latency.types import FloatArray, Target


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file held: a state, or one line on why there is none."""

    state: PredictorState | None
    reason: str = ""


def load(content: bytes) -> Loaded:
    """The state in a file, checked so far that a predictor takes it."""
    return checked(lambda: _parse(content))


def checked(read: Callable[[], PredictorState]) -> Loaded:
    """What `read` finds, if a predictor takes it; and in one line why not, if not."""
    try:
        state = read()
        Predictor(PredictorOptions(buffer_rows=1)).restore(state, 0.0)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        EOFError,
        OSError,
        BadZipFile,
    ) as error:
        return Loaded(None, _one_line(error))
    return Loaded(state)


def _parse(content: bytes) -> PredictorState:
    header = header_of(content)
    position = header["blobs_at"]

    def next_blob(size: int) -> bytes:
        nonlocal position
        position += size
        return content[position - size : position]

    check_features(header)
    trees = {name: [next_blob(size) for size in fields["bytes"]] for name, fields in header["trees"].items()}
    with np.load(io.BytesIO(next_blob(header["rows_bytes"])), allow_pickle=False) as arrays:
        features, actual_ms, at_s = arrays["features"], arrays["actual_ms"], arrays["at_s"]
    return state_of(header, trees, features, actual_ms, at_s, header["endpoint_ids"])


def check_features(metadata: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError if this describes a model for another table of features."""
    if metadata["feature_set"] != FEATURE_SET_HASH:
        raise ValueError("made for other features")


def state_of(
    metadata: Mapping[str, Any],
    trees: Mapping[str, Sequence[bytes]],
    features: npt.NDArray[Any],
    actual_ms: FloatArray,
    at_s: FloatArray,
    endpoint_ids: Sequence[str],
) -> PredictorState:
    """The state from its parts. Raises much, for parts that do not belong together; see `checked`.

    Args:
        metadata: see `metadata_of`.
        trees: by target, mean and spread in any format of XGBoost's own.
        features, actual_ms, at_s, endpoint_ids: as in `Rows`, times as in `PredictorState`.
    """
    targets: dict[Target, TargetTrees] = {}
    for name, fields in metadata["trees"].items():
        mean, spread = (_checked_trees(blob) for blob in trees[name])
        low, high = (float(bound) for bound in fields["log_prior_range"])
        targets[Target(name)] = TargetTrees(
            mean,
            spread,
            float(fields["weight"]),
            (low, high),
            int(fields["trained_rows"]),
            float(fields["score"]),
            float(fields["champion_score"]),
        )
    ids = [str(endpoint_id) for endpoint_id in endpoint_ids]
    if (features.dtype, features.shape) != (np.dtype(np.float32), (len(ids), len(FEATURES))):
        raise ValueError("the rows have other features")
    if actual_ms.shape != (len(ids), len(Target)) or at_s.shape != (len(ids),) or not np.isfinite(at_s).all():
        raise ValueError("the rows are incomplete")
    return PredictorState(
        model=Model(targets) if targets else None,
        model_version=int(metadata["model_version"]),
        model_age_s=None if metadata["model_age_s"] is None else float(metadata["model_age_s"]),
        prior=metadata["prior"],
        bias=metadata["bias"],
        calibration=metadata["calibration"],
        samples_by_endpoint=metadata["samples_by_endpoint"],
        rows=Rows(features, actual_ms, at_s, ids, np.array([bucket_of(row) for row in features], np.intp)),
    )


def _checked_trees(blob: bytes) -> bytes:
    booster = opened(blob)
    if booster.num_features() != len(FEATURES):
        raise ValueError("the trees have other features")
    return saved(booster)


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing" if error.args else "incomplete"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
