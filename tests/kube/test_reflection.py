"""The copy of an API server's objects, whatever becomes of the words in which it tells them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kube.objects import Json
from epp.kube.reflection import Reflection


def obj(name: str, uid: str = "u", version: int | str = 1, value: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)},
        "spec": {"value": value},
    }


def value_of(obj: Json) -> int:
    return int(obj["spec"]["value"])


def copy_of(*objects: Json, version: str = "1") -> Reflection[int]:
    reflection = Reflection(value_of)
    reflection.listed(dict(map(reflection.keep, objects)), version)
    return reflection


def values(reflection: Reflection[int]) -> dict[str, int]:
    return {key.removeprefix("ns/"): kept.value for key, kept in reflection.kept.items()}


def test_events_change_the_copy_and_move_the_version_on() -> None:
    reflection = copy_of(obj("a"))
    assert reflection.happened("ADDED", obj("b", version=2))
    assert reflection.happened("MODIFIED", obj("a", version=3, value=5))
    assert not reflection.happened("MODIFIED", obj("a", version=4, value=5))  # nothing that matters
    assert reflection.happened("DELETED", obj("b", version=5))
    assert values(reflection) == {"a": 5}
    assert not reflection.happened("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    assert reflection.watch_from == "9"
    reflection.must_list()
    assert reflection.watch_from is None
    assert values(reflection) == {"a": 5}


def test_a_late_delete_of_the_old_one_leaves_the_new_one() -> None:
    reflection = copy_of(obj("a", uid="old"))
    assert reflection.happened("ADDED", obj("a", uid="new", value=2))
    assert not reflection.happened("DELETED", obj("a", uid="old"))
    assert values(reflection) == {"a": 2}
    assert reflection.happened("DELETED", obj("a", uid="new"))
    assert values(reflection) == {}


def test_the_first_list_is_news_even_if_there_is_nothing() -> None:
    reflection = Reflection(value_of)
    assert not reflection.synced
    assert reflection.listed({}, "1")
    assert not reflection.listed({}, "2")


class World:
    """An API server's objects of one kind, and its history as a watch would tell it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[str, dict[str, Any]]] = []

    def do(self, action: str, name: str) -> None:
        version = len(self.history) + 1
        there = self.objects.get(name)
        if action == "delete":
            if there is not None:
                del self.objects[name]
                gone = {**there, "metadata": {**there["metadata"], "resourceVersion": str(version)}}
                self.history.append(("DELETED", gone))
            return
        uid = f"u{version}" if there is None else there["metadata"]["uid"]
        self.objects[name] = obj(name, uid, version, value=version)
        self.history.append(("ADDED" if there is None else "MODIFIED", self.objects[name]))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "put", "put"]),
        st.sampled_from("abc"),
        st.sampled_from(["tell", "tell", "tell", "cut", "forget", "stall"]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(ACTIONS)
def test_whatever_is_lost_the_copy_is_right_after_what_was_heard(actions: list[tuple[str, str, str]]) -> None:
    """`tell`: the watch goes on from the version it had. `cut`: it breaks, and is taken up there later, which repeats
    what was told. `forget`: that version is gone, so all is listed. `stall`: nothing comes for a while; then a list."""
    world, reflection = World(), copy_of(version="0")
    told = 0
    for action, name, fate in actions:
        world.do(action, name)
        if fate == "stall":
            continue
        if fate == "forget":
            reflection.must_list()
        if reflection.watch_from is None:
            reflection.listed(dict(map(reflection.keep, world.objects.values())), str(len(world.history)))
            told = len(world.history)
        start = max(0, told - 2) if fate == "cut" and told == len(world.history) else told
        for kind, event in world.history[start:]:
            reflection.happened(kind, event)
        told = len(world.history)
        assert values(reflection) == {n: o["spec"]["value"] for n, o in world.objects.items()}
        assert reflection.watch_from == str(len(world.history))
