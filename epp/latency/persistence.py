"""A predictor's state as one file of bytes, and back.

    magic · SHA-256 of all that follows · length of the header · header (JSON) · trees (XGBoost's UBJSON) · rows (npz)

The header is the state's metadata and the lengths of what comes after it.

Whatever is off (another version, other features, a bit that fell over) leads to a clean "untrained" with its reason,
never to an exception and never to a wrong prediction. Nothing in the file is code: no pickles.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import xgboost

from epp.latency.buffer import Rows, bucket_of
from epp.latency.features import FEATURE_SET_HASH, FEATURES
from epp.latency.model import Model, TargetTrees
from epp.latency.predictor import Predictor, PredictorOptions, PredictorState
from epp.latency.types import FloatArray, Target

FORMAT_VERSION = 1
_MAGIC = b"headroom-latency"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_TREE_FIELDS = ("weight", "log_prior_range", "trained_rows", "score", "champion_score")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file held: a state, or one line on why there is none."""

    state: PredictorState | None
    reason: str = ""


def dump(state: PredictorState) -> bytes:
    """The file's content."""
    header = metadata_of(state)
    blobs: list[bytes] = []
    for target, of_target in ({} if state.model is None else state.model.targets).items():
        pair = [bytes(booster.save_raw("ubj")) for booster in (of_target.mean, of_target.spread)]
        header["trees"][target.value]["bytes"] = [len(blob) for blob in pair]
        blobs += pair
    rows = io.BytesIO()
    np.savez(rows, features=state.rows.features, actual_ms=state.rows.actual_ms, at_s=state.rows.at_s)
    blobs.append(rows.getvalue())
    header |= {"rows_bytes": len(blobs[-1]), "endpoint_ids": list(state.rows.endpoint_ids)}
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join([len(text).to_bytes(_LENGTH_BYTES, "big"), text, *blobs])
    return _MAGIC + hashlib.sha256(body).digest() + body


def metadata_of(state: PredictorState) -> dict[str, Any]:
    """All of a state but the trees themselves and the rows, as plain values."""
    return {
        "format": FORMAT_VERSION,
        "feature_set": FEATURE_SET_HASH,
        "features": [feature.name for feature in FEATURES],
        "model_version": state.model_version,
        "model_age_s": state.model_age_s,
        "trees": {
            target.value: {name: getattr(of_target, name) for name in _TREE_FIELDS}
            for target, of_target in ({} if state.model is None else state.model.targets).items()
        },
        "prior": state.prior,
        "bias": state.bias,
        "calibration": state.calibration,
        "samples_by_endpoint": state.samples_by_endpoint,
    }


def header_of(content: bytes) -> dict[str, Any]:
    """The header alone, for people. Raises ValueError with one line if this is no sound file of this format."""
    start = len(_MAGIC) + _DIGEST_BYTES
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a latency model")
    body = content[start:]
    if hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        raise ValueError("damaged or incomplete")
    length = int.from_bytes(body[:_LENGTH_BYTES], "big")
    header = json.loads(body[_LENGTH_BYTES : _LENGTH_BYTES + length])
    if not isinstance(header, dict) or header.get("format") != FORMAT_VERSION:
        raise ValueError("another version of the format")
    header["blobs_at"] = start + _LENGTH_BYTES + length
    return header


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
    except xgboost.core.XGBoostError:
        return Loaded(None, "the trees are not XGBoost's")
    return Loaded(state)


def _parse(content: bytes) -> PredictorState:
    header = header_of(content)
    position = header["blobs_at"]

    def next_blob(size: int) -> bytes:
        nonlocal position
        position += size
        return content[position - size : position]

    check_features(header)
    boosters = {name: [next_blob(size) for size in fields["bytes"]] for name, fields in header["trees"].items()}
    with np.load(io.BytesIO(next_blob(header["rows_bytes"])), allow_pickle=False) as arrays:
        features, actual_ms, at_s = arrays["features"], arrays["actual_ms"], arrays["at_s"]
    return state_of(header, boosters, features, actual_ms, at_s, header["endpoint_ids"])


def check_features(metadata: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError if this describes a model for another table of features."""
    if metadata["feature_set"] != FEATURE_SET_HASH:
        raise ValueError("made for other features")


def state_of(
    metadata: Mapping[str, Any],
    boosters: Mapping[str, Sequence[bytes]],
    features: npt.NDArray[Any],
    actual_ms: FloatArray,
    at_s: FloatArray,
    endpoint_ids: Sequence[str],
) -> PredictorState:
    """The state from its parts. Raises much, for parts that do not belong together; see `checked`.

    Args:
        metadata: see `metadata_of`.
        boosters: by target, mean and spread in any format of XGBoost's own.
        features, actual_ms, at_s, endpoint_ids: as in `Rows`, times as in `PredictorState`.
    """
    targets: dict[Target, TargetTrees] = {}
    for name, fields in metadata["trees"].items():
        mean, spread = (_booster(blob) for blob in boosters[name])
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


def _booster(blob: bytes) -> xgboost.Booster:
    booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(blob))
    if booster.num_features() != len(FEATURES):
        raise ValueError("the trees have other features")
    return booster


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing" if error.args else "incomplete"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
