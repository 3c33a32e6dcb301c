"""A predictor's state as one file of bytes; `epp.latency.restoring` is the way back.

    magic · SHA-256 of all that follows · length of the header · header (JSON) · trees (XGBoost's UBJSON) · rows (npz)

The header is the state's metadata and the lengths of what comes after it.
Nothing in the file is code: no pickles.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np

from epp.latency.features import FEATURE_SET_HASH, FEATURES
from epp.latency.predictor import PredictorState

FORMAT_VERSION = 1
_MAGIC = b"headroom-latency"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_TREE_FIELDS = ("weight", "log_prior_range", "trained_rows", "score", "champion_score")


def dump(state: PredictorState) -> bytes:
    """The file's content."""
    header = metadata_of(state)
    blobs: list[bytes] = []
    for target, of_target in ({} if state.model is None else state.model.targets).items():
        pair = [of_target.mean, of_target.spread]
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
