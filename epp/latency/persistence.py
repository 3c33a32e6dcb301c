"""A predictor's state as one file of bytes, and back.

    magic · SHA-256 of all that follows · length of the header · header (JSON) · trees (XGBoost's UBJSON) · rows (npz)

Whatever is off (another version, other features, a bit that fell over) leads to a clean "untrained" with its reason,
never to an exception and never to a wrong prediction. Nothing in the file is code: no pickles.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import xgboost

from epp.latency.buffer import Rows, bucket_of
from epp.latency.features import FEATURE_SET_HASH, FEATURES
from epp.latency.model import Model, TargetTrees
from epp.latency.predictor import Predictor, PredictorOptions, PredictorState
from epp.latency.types import Target

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
    blobs: list[bytes] = []
    trees: dict[str, Any] = {}
    for target, of_target in ({} if state.model is None else state.model.targets).items():
        pair = [bytes(booster.save_raw("ubj")) for booster in (of_target.mean, of_target.spread)]
        blobs += pair
        trees[target.value] = {name: getattr(of_target, name) for name in _TREE_FIELDS} | {
            "bytes": [len(blob) for blob in pair]
        }
    rows = io.BytesIO()
    np.savez(rows, features=state.rows.features, actual_ms=state.rows.actual_ms, at_s=state.rows.at_s)
    blobs.append(rows.getvalue())
    header = {
        "format": FORMAT_VERSION,
        "feature_set": FEATURE_SET_HASH,
        "features": [feature.name for feature in FEATURES],
        "model_version": state.model_version,
        "model_age_s": state.model_age_s,
        "trees": trees,
        "rows_bytes": len(blobs[-1]),
        "endpoint_ids": list(state.rows.endpoint_ids),
        "prior": state.prior,
        "bias": state.bias,
        "calibration": state.calibration,
        "samples_by_endpoint": state.samples_by_endpoint,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join([len(text).to_bytes(_LENGTH_BYTES, "big"), text, *blobs])
    return _MAGIC + hashlib.sha256(body).digest() + body


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
    try:
        header = header_of(content)
        if header["feature_set"] != FEATURE_SET_HASH:
            raise ValueError("made for other features")
        state = _state_of(header, content)
        Predictor(PredictorOptions(buffer_rows=1)).restore(state, 0.0)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, EOFError, OSError, BadZipFile) as error:
        return Loaded(None, _one_line(error))
    except xgboost.core.XGBoostError:
        return Loaded(None, "the trees are not XGBoost's")
    return Loaded(state)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path`, or leave the old one as it was. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _state_of(header: Mapping[str, Any], content: bytes) -> PredictorState:
    position = header["blobs_at"]
    targets: dict[Target, TargetTrees] = {}
    for name, fields in header["trees"].items():
        pair = []
        for size in fields["bytes"]:
            booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(content[position : position + size]))
            if booster.num_features() != len(FEATURES):
                raise ValueError("the trees have other features")
            pair.append(booster)
            position += size
        mean, spread = pair
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
    with np.load(io.BytesIO(content[position : position + header["rows_bytes"]]), allow_pickle=False) as arrays:
        features, actual_ms, at_s = arrays["features"], arrays["actual_ms"], arrays["at_s"]
    endpoint_ids = [str(endpoint_id) for endpoint_id in header["endpoint_ids"]]
    count = len(endpoint_ids)
    if (features.dtype, features.shape) != (np.dtype(np.float32), (count, len(FEATURES))):
        raise ValueError("the rows have other features")
    if actual_ms.shape != (count, len(Target)) or at_s.shape != (count,) or not np.isfinite(at_s).all():
        raise ValueError("the rows are incomplete")
    return PredictorState(
        model=Model(targets) if targets else None,
        model_version=int(header["model_version"]),
        model_age_s=None if header["model_age_s"] is None else float(header["model_age_s"]),
        prior=header["prior"],
        bias=header["bias"],
        calibration=header["calibration"],
        samples_by_endpoint=header["samples_by_endpoint"],
        rows=Rows(features, actual_ms, at_s, endpoint_ids, np.array([bucket_of(row) for row in features], np.intp)),
    )


def _one_line(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing" if error.args else "incomplete"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
