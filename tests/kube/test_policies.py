"""Objectives' priorities, and which rule rewrites a model."""

import random
from collections import Counter
from typing import Any

import orjson
import pytest
from kube_world import objective, rewrite, rule
from picker_in_memory import World

from epp.director import Arrival, Assignment, DirectorOptions
from epp.kube.policies import Policies, PoolRef, Rewrites, priorities, read_objective, read_rewrite
from epp.kube.resources import LEGACY_GROUP, POOL_GROUP

POOL = PoolRef(POOL_GROUP, "p")


def rewrites(*objects: dict[str, Any]) -> Rewrites:
    return Rewrites(map(read_rewrite, objects), POOL)


def created(obj: dict[str, Any], when: str) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "creationTimestamp": when}}


def target(of: Rewrites, model: str | None) -> str | None:
    found = of.resolve(model, random.Random(1))
    return None if found is None else found.model


def test_priorities_of_this_pool_alone() -> None:
    other_group = objective("c", "p", 3)
    other_group["spec"]["poolRef"]["group"] = LEGACY_GROUP
    objects = [objective("a", "p", -1), objective("b", "p", None), objective("d", "q", 4), other_group]
    assert priorities(map(read_objective, objects), POOL) == {"a": -1, "b": 0}
    assert priorities(map(read_objective, objects), PoolRef(LEGACY_GROUP, "p")) == {"c": 3}


def test_what_is_being_deleted_holds_no_more() -> None:
    """A finalizer may keep the object for long."""
    gone, r = objective("a", "p", -1), rewrite("r", "p", [rule("a", to={"b": None})])
    for each in (gone, r):
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert priorities([read_objective(gone)], POOL) == {}
    assert target(rewrites(r), "a") is None


def test_exact_rules_come_before_generic_ones_and_older_objects_before_newer() -> None:
    found = rewrites(
        created(
            rewrite("new", "p", [rule("a", to={"new": None}), rule("b", to={"new-b": None})]), "2026-02-02T00:00:00Z"
        ),
        created(
            rewrite("old", "p", [rule(to={"any": None}), rule("a", to={"old": None}), rule("a", to={"late": None})]),
            "2026-01-01T00:00:00Z",
        ),
        rewrite("theirs", "q", [rule("c", to={"theirs": None})]),
    )
    assert [target(found, model) for model in ("a", "b", "c", None)] == ["old", "new-b", "any", "any"]
    chosen = found.resolve("a", random.Random(1))
    assert chosen is not None
    assert chosen.by == "old"


@pytest.mark.parametrize(
    ("targets", "shares"),
    [
        ({"x": None, "y": None}, {"x": 0.5, "y": 0.5}),
        ({"x": 9, "y": 1}, {"x": 0.9, "y": 0.1}),
        ({"x": None, "y": 1}, {"y": 1.0}),
    ],
    ids=["equal", "weighted", "mixed"],
)
def test_targets_are_drawn_by_weight(targets: dict[str, int | None], shares: dict[str, float]) -> None:
    found, rng = rewrites(rewrite("r", "p", [rule("a", to=targets)])), random.Random(3)
    drawn = Counter(chosen.model for _ in range(4000) if (chosen := found.resolve("a", rng)) is not None)
    assert {name: count / 4000 for name, count in drawn.items()} == pytest.approx(shares, abs=0.03)
    assert read_rewrite(rewrite("r", "p", [rule("a", to=targets)])).mixed_weights is (len(shares) == 1)


def test_a_rule_without_targets_rewrites_nothing_and_hides_what_is_behind_it() -> None:
    found = rewrites(rewrite("r", "p", [rule("a", to={}), rule(to={"any": None})]))
    assert [target(found, model) for model in ("a", "b")] == [None, "any"]


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"poolRef": {"name": "p"}, "rules": "x"},
        {"poolRef": {"name": "p"}, "rules": [None, {"matches": "x", "targets": [None, {"modelRewrite": 3}]}]},
        {
            "poolRef": {"name": "p"},
            "rules": [{"matches": [{"model": {"type": "Regex", "value": ".*"}}], "targets": []}],
        },
    ],
    ids=str,
)
def test_rules_that_make_no_sense_rewrite_nothing(spec: Any) -> None:
    assert target(rewrites({"metadata": {"name": "r"}, "spec": spec}), "a") is None


def test_the_director_follows_rules_on_top_of_headers_and_for_requests_without_a_model() -> None:
    rules = [rule("a", to={"b": None}), rule(to={"any": None})]
    found = rewrites(rewrite("r", "p", rules))
    world = World(director=DirectorOptions(resolve_rewrite=found.resolve))

    def sent(body: dict[str, Any] | None, headers: dict[str, str] | None = None, path: str = "/v1/completions") -> Any:
        data = None if body is None else orjson.dumps(body)
        given = Arrival({":path": path, **(headers or {})}, data, True, data is not None, None, 1000.0)
        assignment = world.director.decide(given)
        assert isinstance(assignment, Assignment)
        whole = data if assignment.body is None else b"".join(assignment.body)
        return None if whole is None else orjson.loads(whole).get("model")

    assert sent({"model": "a", "prompt": "x"}) == "b"
    assert sent({"model": "c", "prompt": "x"}, {"x-llm-d-model-name-rewrite": "a"}) == "b"
    assert sent({"prompt": "x"}) == "any"
    assert sent({"prompt": "x"}, path="/generate") is None  # an engine's own API, which knows no models
    assert sent(None, path="/v1/models") is None
    counted = world.registry.get_sample_value(
        "llm_d_epp_model_rewrite_decisions_total",
        {"model_rewrite_name": "r", "model_name": "a", "target_model": "b"},
    )
    assert counted == 1


def test_what_is_current_is_seen_through_the_view_that_was_handed_out() -> None:
    policies = Policies({"batch": -1, "kept": 2})
    view = policies.priorities
    assert dict(view) == {"batch": -1, "kept": 2}
    assert policies.resolve_rewrite("a", random.Random(1)) is None
    policies.replace({"batch": 5}, rewrites(rewrite("r", "p", [rule("a", to={"x": None})])))
    assert (view["batch"], view.get("kept"), view.get("unknown", 0), "unknown" in view) == (5, 2, 0, False)
    assert policies.resolve_rewrite("a", random.Random(1)) is not None
    policies.replace({}, Rewrites())
    assert dict(view) == {"batch": -1, "kept": 2}
