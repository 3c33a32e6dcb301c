"""A copy of one kind of objects, kept true by lists and watches. The state machine; it does no I/O.

    LIST ── items and a resource version ──▶ WATCH ── events, bookmarks ──▶ the copy changes
     ▲                                        │ ▲
     │   too old (410), stalled,              │ │ ended in order, or the connection broke:
     └── refused, time to look at all ────────┘ └── watch on from the last version heard

A list states everything, so it heals whatever went wrong before: a delete that was missed, a watch that fell silent.
Until the next good list the last good copy stands, however long the API server is gone.

Objects are kept under namespace and name. One may be deleted and made again under its name; the uid tells which is
meant, so a late word of the old one's end does not take the new one away.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from epp.kube.objects import Json, mapping, name_of, text, uid_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """What is kept of one object."""

    uid: str
    value: T


class Reflection(Generic[T]):
    """
    Args:
        read: makes of an object what is kept of it; must not raise.
        known: a first copy from elsewhere; it stands until the first list.

    Attributes:
        kept: the copy, by `namespace/name`. A change of it is a new mapping or a change in place: do not hold on to it.
        watch_from: the resource version to watch on from; `None`: list first.
        synced: a list has succeeded once.
    """

    def __init__(self, read: Callable[[Json], T], known: Mapping[str, Kept[T]] | None = None) -> None:
        self._read = read
        self.kept: dict[str, Kept[T]] = dict(known or {})
        self.watch_from: str | None = None
        self.synced = False

    def keep(self, obj: Json) -> tuple[str, Kept[T]]:
        """The key of an object, and what is kept of it."""
        return key_of(obj), Kept(uid_of(obj), self._read(obj))

    def listed(self, everything: Mapping[str, Kept[T]], resource_version: str) -> bool:
        """All that there is, as of this version. Returns whether this says anything new."""
        news = not self.synced or self.kept != everything
        self.kept = dict(everything)
        self.watch_from = resource_version or None
        self.synced = True
        return news

    def happened(self, kind: str, obj: Json) -> bool:
        """One event of the watch, by its `type`; ERROR is not for here. Returns whether the copy changed."""
        changed = False
        if kind in ("ADDED", "MODIFIED"):
            key, kept = self.keep(obj)
            changed = self.kept.get(key) != kept
            self.kept[key] = kept
        elif kind == "DELETED":
            known = self.kept.get(key_of(obj))
            changed = known is not None and uid_of(obj) in ("", known.uid)
            if changed:
                del self.kept[key_of(obj)]
        elif kind != "BOOKMARK":
            return False
        version = text(mapping(obj, "metadata").get("resourceVersion"))
        if version:
            self.watch_from = version
        return changed

    def must_list(self) -> None:
        """The version heard last is not to be watched on from."""
        self.watch_from = None


def key_of(obj: Json) -> str:
    return f"{text(mapping(obj, 'metadata').get('namespace'))}/{name_of(obj)}"
