"""Objectives and model rewrites of one pool: what the objects say, as lookups.

Both kinds name the pool that they are for; those of other pools do not count. An objective gives a name a priority. A
rewrite has rules; a rule names models, or none and is generic, and where their requests go instead.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from epp.inference.rewrite import Rewritten
from epp.kube.objects import Json, is_being_deleted, items, mapping, name_of, text, whole
from epp.kube.resources import POOL_GROUP


@dataclass(frozen=True, slots=True)
class PoolRef:
    """The pool that an object is for."""

    group: str
    name: str


def _pool_ref(obj: Json) -> PoolRef | None:
    """`None`: it is on its way out and holds for no pool any more."""
    if is_being_deleted(obj):
        return None
    ref = mapping(obj, "spec", "poolRef")
    return PoolRef(text(ref.get("group")) or POOL_GROUP, text(ref.get("name")))


@dataclass(frozen=True, slots=True)
class Objective:
    pool: PoolRef | None
    name: str
    priority: int


def read_objective(obj: Json) -> Objective:
    """Unset priority is 0."""
    return Objective(_pool_ref(obj), name_of(obj), whole(mapping(obj, "spec").get("priority")) or 0)


def priorities(objectives: Iterable[Objective], pool: PoolRef) -> dict[str, int]:
    """Priority by name, of the pool's objectives."""
    return {objective.name: objective.priority for objective in objectives if objective.pool == pool}


@dataclass(frozen=True, slots=True)
class Rule:
    """
    Attributes:
        models: exact names; empty is any model, and no model.
        targets: where its requests go.
        weights: running sums, one per target, the last is the total.
    """

    models: tuple[str, ...]
    targets: tuple[Rewritten, ...]
    weights: tuple[int, ...]

    def choose(self, rng: random.Random) -> Rewritten:
        if len(self.targets) == 1:
            return self.targets[0]
        return rng.choices(self.targets, cum_weights=self.weights)[0]


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """
    Attributes:
        created: as the API server writes it: of one length, so that texts sort as times.
        mixed_weights: a rule has targets with a weight and without; the latter get nothing.
    """

    pool: PoolRef | None
    name: str
    created: str
    rules: tuple[Rule, ...]
    mixed_weights: bool = False


def read_rewrite(obj: Json) -> ModelRewrite:
    rules = [mapping(rule) for rule in items(mapping(obj, "spec").get("rules"))]
    return ModelRewrite(
        _pool_ref(obj),
        name_of(obj),
        text(mapping(obj, "metadata").get("creationTimestamp")),
        tuple(rule for entry in rules for rule in _read_rule(name_of(obj), entry)),
        any(_is_mixed(entry) for entry in rules),
    )


def _weights(rule: Json) -> list[tuple[str, int | None]]:
    targets = [mapping(target) for target in items(rule.get("targets"))]
    return [(text(t.get("modelRewrite")), whole(t.get("weight"))) for t in targets if text(t.get("modelRewrite"))]


def _is_mixed(rule: Json) -> bool:
    return len({weight is None for _, weight in _weights(rule)}) == 2


def _read_rule(by: str, rule: Json) -> Iterator[Rule]:
    """A rule that names no target rewrites nothing, but stands in the way of those behind it."""
    matches = [mapping(match, "model") for match in items(rule.get("matches"))]
    models = tuple(text(m.get("value")) for m in matches if m.get("type", "Exact") == "Exact" and text(m.get("value")))
    if matches and not models:
        return  # every match is of a kind that we do not know: it is no generic rule for that
    targets = _weights(rule)
    if any(weight is not None for _, weight in targets):
        targets = [(name, weight) for name, weight in targets if weight is not None and weight > 0]
    sums = tuple(accumulate(1 if weight is None else weight for _, weight in targets))
    yield Rule(models, tuple(Rewritten(model, by) for model, _ in targets), sums)


class Rewrites:
    """The rules of a pool, best first: exact before generic, then the older object, then the object's own order."""

    def __init__(self, rewrites: Iterable[ModelRewrite] = (), pool: PoolRef | None = None) -> None:
        self._exact: dict[str, Rule] = {}
        self._generic: Rule | None = None
        for rewrite in sorted((r for r in rewrites if r.pool == pool), key=lambda r: (r.created, r.name)):
            for rule in rewrite.rules:
                for model in rule.models:
                    self._exact.setdefault(model, rule)
                if not rule.models and self._generic is None:
                    self._generic = rule

    def resolve(self, model: str | None, rng: random.Random) -> Rewritten | None:
        """Where a request for `model` goes instead; `None`: where it wants to."""
        rule = self._generic if model is None else self._exact.get(model, self._generic)
        return rule.choose(rng) if rule is not None and rule.targets else None

    def __len__(self) -> int:
        return len(self._exact) + (self._generic is not None)


class Policies:
    """What holds now, for whoever asks again with every request. Changed by `replace` alone.

    Attributes:
        priorities: by objective name: the pool's objectives, and those given by hand for names that it does not have.
    """

    def __init__(self, given: Mapping[str, int]) -> None:
        self._given = dict(given)
        self._current: Mapping[str, int] = {}
        self._rewrites = Rewrites()
        self.priorities: Mapping[str, int] = _Live(lambda: self._current)
        self.replace({}, Rewrites())

    def replace(self, objectives: Mapping[str, int], rewrites: Rewrites) -> None:
        """From now on these hold."""
        self._current = {**self._given, **objectives}
        self._rewrites = rewrites

    @property
    def current(self) -> tuple[Mapping[str, int], Rewrites]:
        """Arguments that would make another `Policies` the same; the very same objects until something changes."""
        return self._current, self._rewrites

    def resolve_rewrite(self, model: str | None, rng: random.Random) -> Rewritten | None:
        """As `Rewrites.resolve`."""
        return self._rewrites.resolve(model, rng)


class _Live(Mapping[str, int]):
    """Whatever mapping is current."""

    def __init__(self, current: Callable[[], Mapping[str, int]]) -> None:
        self._current = current

    def __getitem__(self, name: str) -> int:
        return self._current()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())
