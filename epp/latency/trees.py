"""Boosted trees as flat arrays, evaluated level by level for all rows and all trees at once.

XGBoost's own call costs more than 100 µs before it looks at a row. Here the trees of one or more boosters lie in one
set of arrays, padded to one depth. Every split of every tree is compared for every row (many are the same, and are
compared once): in shallow trees that is cheaper than to find out which splits matter, because it runs through memory in
order. Then of the two halves below the root the one is kept that the root's answer leads to, which is a tree again, one
byte per tree and row, until no split is left: the way that the row takes. The semantics are XGBoost's: a float32 value
goes left if it is below the threshold, a missing one goes the way the split says.

A missing value needs no case of its own: every feature is there twice, once with missing as +∞ (never below a
threshold: right) and once as −∞ (left), and a split reads the one that goes its way.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from epp.latency.features import FeatureMatrix

if TYPE_CHECKING:
    import xgboost

_CHUNK_ROWS = 64  # what is touched at once stays in the processor's cache
_SHAPES = 8  # numbers of rows for which buffers are kept
_MOST_LEVELS = 8  # the work doubles with each
# Objectives whose prediction is the sum of the leaves and the base score, without a link.
_IDENTITY_LINK = frozenset({"reg:squarederror", "reg:absoluteerror", "reg:quantileerror", "reg:pseudohubererror"})

_Floats = npt.NDArray[np.float32]
_Indices = npt.NDArray[np.intp]
_Bits = npt.NDArray[np.uint8]


class _Level(NamedTuple):
    """Views of the answers when the way down to this level is known. The half that counts is left in `left`."""

    root: _Bits  # (trees, rows)
    left: _Bits  # (splits, trees, rows), as `right` and `scratch`
    right: _Bits
    scratch: _Bits


class _Buffers(NamedTuple):
    """For one number of rows."""

    columns: _Floats  # (2 · features, rows)
    values: _Floats  # (different splits, rows)
    thresholds: _Floats  # the same: written out, as comparing what lies side by side is much quicker
    answers: _Bits  # the same: is the value not below the threshold
    right: _Bits  # (splits · trees, rows): does the row go right there
    levels: list[_Level]
    code: _Bits  # (trees, rows): the way taken, one bit per level
    leaf: _Indices  # (trees, rows)
    leaf_values: _Floats  # (trees, rows)


class FlatTrees:
    """See the module's text. Predictions are (rows, outputs) float32. For use from one thread."""

    def __init__(self, boosters: "Iterable[xgboost.Booster]") -> None:
        """Outputs are those of the boosters, one after the other. Raises ValueError for what it cannot reproduce."""
        models = [json.loads(bytes(booster.save_raw("json")))["learner"] for booster in boosters]
        if not models:
            raise ValueError("no trees")
        self.feature_count = int(models[0]["learner_model_param"]["num_feature"])
        trees: list[list[dict[str, Any]]] = []
        base: list[float] = []
        for model in models:
            outputs, scores = _outputs_of(model, self.feature_count)
            trees += outputs
            base += scores
        self._base = np.array(base, dtype=np.float32)[:, np.newaxis]
        self._ends = np.cumsum([len(output) for output in trees]).tolist()
        flat = [tree for output in trees for tree in output]
        self.tree_count = len(flat)
        self.depth, columns, thresholds, self._leaves = _flatten(flat, self.feature_count)
        splits, self._question = np.unique(np.stack([columns, thresholds]), axis=1, return_inverse=True)
        self._columns = splits[0].astype(np.intp)
        self._thresholds = splits[1].astype(np.float32)
        self._first_leaf = (np.arange(self.tree_count, dtype=np.intp) << self.depth)[:, np.newaxis]
        self._buffers: dict[int, _Buffers] = {}

    def predict(self, features: FeatureMatrix) -> _Floats:
        """(rows, features) float32, NaN is missing, to (rows, outputs)."""
        if features.ndim != 2 or features.shape[1] != self.feature_count:
            raise ValueError(f"expected {self.feature_count} features per row")
        result = np.empty((len(self._base), len(features)), dtype=np.float32)
        for start in range(0, len(features), _CHUNK_ROWS):
            self._walk(features[start : start + _CHUNK_ROWS], result[:, start : start + _CHUNK_ROWS])
        return result.T

    def _walk(self, features: FeatureMatrix, result: _Floats) -> None:
        buffers = self._buffers_for(len(features))
        known, half = features.T, self.feature_count
        np.fmin(known, np.float32(np.inf), out=buffers.columns[:half])  # takes the number if there is one
        np.fmax(known, np.float32(-np.inf), out=buffers.columns[half:])
        buffers.columns.take(self._columns, axis=0, out=buffers.values, mode="clip")
        np.greater_equal(buffers.values, buffers.thresholds, out=buffers.answers.view(np.bool_))
        buffers.answers.take(self._question, axis=0, out=buffers.right, mode="clip")
        code = buffers.code
        code[...] = 0
        for root, left, right, scratch in buffers.levels:
            np.add(code, code, out=code)
            np.add(code, root, out=code)
            if len(left):
                np.bitwise_xor(left, right, out=scratch)
                np.bitwise_and(scratch, root, out=scratch)
                np.bitwise_xor(left, scratch, out=left)
        np.add(self._first_leaf, code, out=buffers.leaf)
        self._leaves.take(buffers.leaf, out=buffers.leaf_values, mode="clip")
        start = 0
        for output, end in enumerate(self._ends):
            np.add.reduce(buffers.leaf_values[start:end], axis=0, out=result[output])
            start = end
        np.add(result, self._base, out=result)

    def _buffers_for(self, rows: int) -> _Buffers:
        buffers = self._buffers.get(rows)
        if buffers is None:
            if len(self._buffers) >= _SHAPES:
                self._buffers.pop(next(iter(self._buffers)))
            trees = self.tree_count
            right = np.empty((len(self._question), rows), dtype=np.uint8)
            scratch = np.empty((2**self.depth // 2, trees, rows), dtype=np.uint8)
            levels: list[_Level] = []
            splits = right.reshape(-1, trees, rows)
            while len(splits):
                half = len(splits) // 2
                levels.append(_Level(splits[0], splits[1 : half + 1], splits[half + 1 :], scratch[:half]))
                splits = levels[-1].left
            buffers = self._buffers[rows] = _Buffers(
                columns=np.empty((2 * self.feature_count, rows), dtype=np.float32),
                values=np.empty((len(self._columns), rows), dtype=np.float32),
                thresholds=np.repeat(self._thresholds[:, np.newaxis], rows, axis=1),
                answers=np.empty((len(self._columns), rows), dtype=np.uint8),
                right=right,
                levels=levels,
                code=np.empty((trees, rows), dtype=np.uint8),
                leaf=np.empty((trees, rows), dtype=np.intp),
                leaf_values=np.empty((trees, rows), dtype=np.float32),
            )
        return buffers


def _outputs_of(model: dict[str, Any], feature_count: int) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """One booster's trees by output, and the outputs' base scores."""
    if model["objective"]["name"] not in _IDENTITY_LINK:
        raise ValueError(f"objective {model['objective']['name']} has a link function")
    if model["gradient_booster"]["name"] != "gbtree":
        raise ValueError("not plain boosted trees")
    parameters = model["learner_model_param"]
    if int(parameters["num_feature"]) != feature_count:
        raise ValueError("the boosters do not share their features")
    forest = model["gradient_booster"]["model"]
    outputs: list[list[dict[str, Any]]] = [[] for _ in range(max(1, int(parameters["num_target"])))]
    for tree, output in zip(forest["trees"], forest["tree_info"], strict=True):
        if any(tree["split_type"]):
            raise ValueError("a tree splits on categories")
        if int(tree["tree_param"]["size_leaf_vector"]) > 1:
            raise ValueError("a tree has vectors for leaves")
        outputs[output].append(tree)
    # One number, or a list of one per output in square brackets, by version.
    scores = [float(part) for part in parameters["base_score"].strip("[]").split(",")]
    if len(scores) == 1:
        scores *= len(outputs)
    if len(scores) != len(outputs):
        raise ValueError("base scores and outputs differ in number")
    return outputs, scores


def _flatten(trees: Sequence[dict[str, Any]], feature_count: int) -> tuple[int, _Indices, _Floats, _Floats]:
    """Depth; every split's column and threshold, by place and tree; leaves by tree and way.

    Places are in pre-order: a split, all below it to the left, all below it to the right. A leaf above the last level
    is copied to all places below it.
    """
    depth = max((_depth_of(tree) for tree in trees), default=0)
    if depth > _MOST_LEVELS:
        raise ValueError(f"a tree has more than {_MOST_LEVELS} levels")
    size = max((len(tree["left_children"]) for tree in trees), default=1)

    def table(key: str) -> npt.NDArray[np.float64]:
        padded = np.full((len(trees), size), -1.0)
        for i, tree in enumerate(trees):
            padded[i, : len(tree[key])] = tree[key]
        return padded

    left, right = table("left_children").astype(np.intp), table("right_children").astype(np.intp)
    feature, default_left = table("split_indices").astype(np.intp), table("default_left")
    # The model's JSON has one array for both: a split's threshold, a leaf's value.
    condition = table("split_conditions").astype(np.float32)
    tree = np.arange(len(trees))
    nodes = np.zeros((1, len(trees)), dtype=np.intp)
    columns = np.zeros((2**depth - 1, len(trees)), dtype=np.intp)
    thresholds = np.zeros((2**depth - 1, len(trees)), dtype=np.float32)
    places = np.zeros(1, dtype=np.intp)
    for level in range(depth):
        leaf = left[tree, nodes] < 0
        column = feature[tree, nodes] + np.where(default_left[tree, nodes] > 0, feature_count, 0)
        columns[places] = np.where(leaf, 0, column)
        thresholds[places] = np.where(leaf, np.float32(np.inf), condition[tree, nodes])
        below = 2 ** (depth - level - 1)  # to the right of a place, one more than there are splits to its left
        places = np.stack([places + 1, places + below], axis=1).reshape(-1)
        children = [np.where(leaf, nodes, side[tree, nodes]) for side in (left, right)]
        nodes = np.stack(children, axis=1).reshape(-1, len(trees))
    leaves = condition[tree, nodes].T.reshape(-1)
    return depth, columns.reshape(-1), thresholds.reshape(-1), leaves


def _depth_of(tree: dict[str, Any]) -> int:
    depth, level = 0, [0]
    while True:
        level = [c for n in level for c in (tree["left_children"][n], tree["right_children"][n]) if c >= 0]
        if not level:
            return depth
        depth += 1
