"""The features: one table, and the one function that turns a situation into numbers.

A prediction and the sample that is later learned from it share one row of this matrix, so there is nothing that could
be taken at two different times. The table says for every column what it is, where it comes from, and which way physics
lets it move a latency: a server with more to do is never faster. NaN is not known; the prior law and the trees both
know what to do with it, except where a target `needs` the column: such a row has no prediction, its neighbours have.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from epp.latency.types import Situation, Target

FeatureMatrix = npt.NDArray[np.float32]
"""(rows, features), columns as in `FEATURES`."""

_TTFT, _TPOT, _E2E = Target.TTFT, Target.TPOT, Target.E2E


@dataclass(frozen=True, slots=True)
class Feature:
    """One column.

    Attributes:
        source: who knows it: the request, the picker's own ledger, the server's metrics, or columns it is made of.
        rises: targets that never fall when it grows, all else equal. Said of what the picker itself counts. Of the
            server's gauges, which are old and move together, the trees may learn otherwise: constraining those too cost
            5 to 10 % of accuracy in simulated pools.
        needed_by: targets that cannot be predicted without it. For the others it may be missing.
    """

    name: str
    unit: str
    source: str
    doc: str
    rises: frozenset[Target] = frozenset()
    needed_by: frozenset[Target] = frozenset()


_ALL = frozenset(Target)

FEATURES: tuple[Feature, ...] = (
    Feature("prompt_tokens", "tokens", "request", "length of the prompt"),
    Feature(
        "uncached_tokens",
        "tokens",
        "request, prefix index",
        "prompt tokens this server has to prefill; the whole prompt if nothing is known of its cache",
        frozenset({_TTFT, _E2E}),
        frozenset({_TTFT}),
    ),
    Feature(
        "prefill_tokens_before", "tokens", "ledger", "uncached tokens sent there that have not led to a token yet", _ALL
    ),
    Feature(
        "prefill_tokens_queued",
        "tokens",
        "derived",
        "`prefill_tokens_before` and `uncached_tokens` together: the prefill until this request's first token",
        _ALL,
    ),
    Feature("waiting_requests", "requests", "metrics", "requests in the server's queue"),
    Feature("running_requests", "requests", "metrics", "requests in the server's batch"),
    Feature("in_flight_requests", "requests", "ledger", "requests sent there that have not ended", _ALL),
    Feature(
        "active_requests",
        "requests",
        "derived",
        "the larger of `in_flight_requests` (fresh) and waiting and running together (counts what others sent)",
        _ALL,
        _ALL,
    ),
    Feature("kv_cache_usage_ratio", "0..1", "metrics", "share of the KV cache in use"),
    Feature("decode_tokens_in_flight", "tokens", "ledger", "context of the requests past their first token"),
    Feature("max_output_tokens", "tokens", "request", "the client's cap on the answer", frozenset({_E2E})),
    Feature("is_prefill", "0 or 1", "role label", "the server prefills for others and does not decode"),
)

COLUMN: Mapping[str, int] = MappingProxyType({feature.name: i for i, feature in enumerate(FEATURES)})

FEATURE_SET_HASH = hashlib.sha256(
    repr([(f.name, f.unit, f.source, f.doc, sorted(t.value for t in f.rises)) for f in FEATURES]).encode()
).hexdigest()[:16]
"""Changes with the table: a model made for another table is not for this one."""

_PROMPT, _UNCACHED, _BEFORE, _QUEUED, _WAITING, _RUNNING, _IN_FLIGHT, _ACTIVE, _KV, _DECODE, _CAP, _PREFILL = range(
    len(FEATURES)
)
NEEDED_COLUMNS: Mapping[Target, tuple[int, ...]] = MappingProxyType(
    {target: tuple(i for i, f in enumerate(FEATURES) if target in f.needed_by) for target in Target}
)
_MOST = 1e9  # no count of tokens or requests is larger; what is, is not a measurement


def feature_matrix(situation: Situation) -> FeatureMatrix:
    """The features of every candidate. What is negative, infinite or absurd counts as not known.

    In memory each column lies in one piece, which is how it is written here and read by laws and trees.
    """
    known = np.empty((len(FEATURES), len(situation)))
    known[_PROMPT] = situation.prompt_tokens
    before, in_flight = situation.prefill_tokens_in_flight, situation.in_flight_requests
    columns = (  # from `_UNCACHED` to `_DECODE`; the two that are derived, below, have the place of one they come from
        situation.uncached_tokens,
        before,
        before,
        situation.waiting_requests,
        situation.running_requests,
        in_flight,
        in_flight,
        situation.kv_cache_usage_ratio,
        situation.decode_tokens_in_flight,
    )
    np.concatenate(columns, out=known[_UNCACHED:_CAP].reshape(-1))
    known[_CAP] = situation.max_output_tokens
    known[_PREFILL] = situation.is_prefill
    # As a rule nothing is out of range; fmin and fmax leave out what is not known.
    if not (np.fmin.reduce(known, axis=None) >= 0.0 and np.fmax.reduce(known, axis=None) <= _MOST):
        np.copyto(known, np.nan, where=~((known >= 0.0) & (known <= _MOST)))
    matrix = known.astype(np.float32)
    np.minimum(matrix[_KV], 1.0, out=matrix[_KV])
    uncached = matrix[_UNCACHED]
    # A server that says nothing of its cache has nothing of this prompt; none has to prefill more than the prompt.
    np.fmin(uncached, matrix[_PROMPT], out=uncached)
    # Tokens of unknown number may wait there; those of the request itself certainly do.
    np.fmax(uncached, uncached + matrix[_BEFORE], out=matrix[_QUEUED])
    np.fmax(matrix[_IN_FLIGHT], matrix[_WAITING] + matrix[_RUNNING], out=matrix[_ACTIVE])
    return matrix.T


def monotone_constraints(target: Target) -> tuple[int, ...]:
    """XGBoost's `monotone_constraints`: 1 for each column that `target` never falls with, else 0."""
    return tuple(int(target in feature.rises) for feature in FEATURES)
