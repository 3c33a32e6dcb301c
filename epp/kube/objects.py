"""Objects of the API server's JSON, read with care: a field of the wrong type is an absent field."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def mapping(value: Any, *path: str) -> Json:
    """What lies at `path` below `value`, if it is an object; else an empty one."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def texts(value: Any) -> dict[str, str]:
    """A map of strings, as labels and annotations are."""
    return {key: entry for key, entry in mapping(value).items() if isinstance(entry, str)}


def name_of(value: Json) -> str:
    return text(mapping(value, "metadata").get("name"))


def uid_of(value: Json) -> str:
    return text(mapping(value, "metadata").get("uid"))


def is_being_deleted(value: Json) -> bool:
    return mapping(value, "metadata").get("deletionTimestamp") is not None
