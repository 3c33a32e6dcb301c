"""A predictor's state as files that other programs read: XGBoost's own JSON, plain JSON, and CSV.

metadata.json        what the state is and what was learned beside the trees
TARGET.mean.json     the trees for log(ms); for each target that has trees
TARGET.spread.json   the trees for the logarithm of the error to expect
samples.csv          what was learned from, oldest first; an empty field is not known
"""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from epp.latency.boosters import as_json
from epp.latency.features import FEATURES
from epp.latency.persistence import FORMAT_VERSION, metadata_of
from epp.latency.predictor import PredictorState
from epp.latency.restoring import Loaded, check_features, checked, state_of
from epp.latency.types import Target

METADATA, SAMPLES = "metadata.json", "samples.csv"
_PARTS = ("mean", "spread")
_COLUMNS = ("age_s", "endpoint_id", *(f.name for f in FEATURES), *(f"actual_{target.value}_ms" for target in Target))


def unpack(state: PredictorState) -> dict[str, bytes]:
    """The files by name."""
    files = {METADATA: json.dumps(metadata_of(state), indent=2).encode(), SAMPLES: _csv(state)}
    for target, trees in ({} if state.model is None else state.model.targets).items():
        for part, saved in zip(_PARTS, (trees.mean, trees.spread), strict=True):
            files[_tree_file(target.value, part)] = as_json(saved)
    return files


def pack(files: Mapping[str, bytes]) -> Loaded:
    """The state in such files, checked like a model file. `files` raises KeyError for what is not there."""

    def read() -> PredictorState:
        metadata: dict[str, Any] = json.loads(files[METADATA])
        if metadata["format"] != FORMAT_VERSION:
            raise ValueError("another version of the format")
        check_features(metadata)
        trees = {name: [files[_tree_file(name, part)] for part in _PARTS] for name in metadata["trees"]}
        header, *lines = csv.reader(io.StringIO(files[SAMPLES].decode(), newline=""))
        if tuple(header) != _COLUMNS:
            raise ValueError(f"{SAMPLES} has other columns")
        numbers = np.array([[_number(text) for text in (age, *rest)] for age, _, *rest in lines], dtype=np.float64)
        numbers = numbers.reshape(len(lines), len(_COLUMNS) - 1)
        features, actual_ms = np.split(numbers[:, 1:], [len(FEATURES)], axis=1)
        return state_of(
            metadata,
            trees,
            features.astype(np.float32),
            actual_ms,
            -numbers[:, 0],
            [endpoint_id for _, endpoint_id, *_ in lines],
        )

    return checked(read)


def _tree_file(target: str, part: str) -> str:
    return f"{target}.{part}.json"


def _csv(state: PredictorState) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    rows = state.rows
    for at_s, endpoint_id, features, actual_ms in zip(
        rows.at_s.tolist(), rows.endpoint_ids, rows.features.tolist(), rows.actual_ms.tolist(), strict=True
    ):
        writer.writerow([-at_s, endpoint_id, *map(_text, features), *map(_text, actual_ms)])
    return text.getvalue().encode()


def _text(number: float) -> str:
    return repr(number) if number == number else ""


def _number(text: str) -> float:
    return float(text) if text else float("nan")
