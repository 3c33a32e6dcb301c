"""A model's complaints in the words of the file: key path, line, what is wrong, how to mend it."""

import copy
import json
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from epp.config.errors import ConfigError, KeyPath, Remark, did_you_mean, printable, shown
from epp.config.loader import Document

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], value: Any, document: Document, at: KeyPath) -> ModelT:
    """`value`, which stands at `at` in the document, as a `model`. As in Go, null is the same as absent.

    Raises:
        ConfigError: every fault of `value` at once.
    """
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    nulls = [f["loc"] for f in faults if f["input"] is None and f["type"] not in ("missing", "extra_forbidden")]
    if nulls:
        pruned = _without(value, nulls)
        if pruned != value:
            return validate(model, pruned, document, at)
    by_path: dict[KeyPath, list[Any]] = {}
    for fault in faults:
        by_path.setdefault(_path(fault["loc"], fault["type"] == "missing", document, at), []).append(fault)
    raise ConfigError([_remark(document, path, together, model) for path, together in by_path.items()])


def _remark(document: Document, path: KeyPath, faults: list[Any], model: type[BaseModel]) -> Remark:
    """One remark for all faults of one place: the branches of a union complain one by one."""
    message = " or ".join(dict.fromkeys(map(_message, faults)))
    first = faults[0]
    if first["type"] not in ("missing", "extra_forbidden") and not (
        first["type"] == "value_error" and isinstance(first["input"], dict | list)
    ):
        message += f", not {shown(first['input'])}"
    return document.remark(path, message, next(filter(None, (_fix(fault, model) for fault in faults)), ""))


def _without(value: Any, locations: Sequence[KeyPath]) -> Any:
    """A copy of `value` in which the keys at `locations` are gone."""
    result = copy.deepcopy(value)
    for location in locations:
        node = result
        for part in location:
            if isinstance(node, dict) and isinstance(part, str) and part in node:
                if node[part] is None:
                    del node[part]
                    break
                node = node[part]
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
    return result


def _path(location: KeyPath, missing: bool, document: Document, at: KeyPath) -> KeyPath:
    """The part of a model's location that is really in the file; a missing key counts as being there."""
    path = at
    for part in location:
        if not document.exists((*path, part)):
            return (*path, part) if missing and part == location[-1] else path
        path = (*path, part)
    return path


def _message(fault: Any) -> str:
    kind = fault["type"]
    if kind == "missing":
        return "required key is missing"
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "value_error":
        return printable(str(fault["ctx"]["error"]))
    return printable(fault["msg"].replace("Input should be", "must be"))


def _fix(fault: Any, model: type[BaseModel]) -> str:
    kind, got = fault["type"], fault["input"]
    if kind == "missing":
        return "add it"
    if kind == "extra_forbidden":
        known = _known_keys(model, fault["loc"][:-1])
        key = str(fault["loc"][-1])
        return did_you_mean(key, known) or (f"known keys are {', '.join(known)}" if known else "no key is known here")
    if kind == "int_type" and isinstance(got, float) and got.is_integer():
        return f"write {int(got)}"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(got, str):
        return "write it without quotes" if _is_bare(got, kind) else ""
    if kind == "string_type" and isinstance(got, int | float):
        return "put it in quotes"
    return ""


def _is_bare(text: str, kind: str) -> bool:
    """The text would be right if only it were not quoted."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    wanted: dict[str, tuple[type, ...]] = {"int_type": (int,), "float_type": (int, float), "bool_type": (bool,)}
    return isinstance(value, wanted[kind]) and (kind == "bool_type" or not isinstance(value, bool))


def _known_keys(model: type[BaseModel], location: KeyPath) -> list[str]:
    """The keys that are allowed at `location` inside a `model`."""
    models = [model]
    for part in location:
        fields = [f for m in models for name, f in m.model_fields.items() if (f.alias or name) == part]
        if fields:  # list positions and union branches lead to no other model
            models = [m for f in fields for m in models_in(f.annotation)]
    return [f.alias or name for m in models for name, f in m.model_fields.items()]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field of this type may hold, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]
