"""Every plugin type with its parameters and defaults, as Markdown: `python -m epp.config.catalogue`."""

import inspect
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from epp.scheduling.plugin import (
    Admitter,
    DataSource,
    Discovery,
    EndHook,
    Extractor,
    Filter,
    FirstTokenHook,
    Parser,
    Picker,
    Plugin,
    PreRequest,
    Producer,
    ProfileHandler,
    RequestProcessor,
    ResponseChunkHook,
    ResponseHeadersHook,
    SaturationDetector,
    Scorer,
    Screener,
    Stability,
)
from epp.scheduling.registry import Registry

# In the order in which a request meets them; last, what a plugin does beside something else. A type is listed under the
# first role that it plays.
_SECTIONS: tuple[tuple[str, type[Plugin]], ...] = (
    ("Discovery", Discovery),
    ("Data sources", DataSource),
    ("Extractors", Extractor),
    ("Parsers", Parser),
    ("Screeners", Screener),
    ("Producers", Producer),
    ("Admitters", Admitter),
    ("Saturation detectors", SaturationDetector),
    ("Profile handlers", ProfileHandler),
    ("Filters", Filter),
    ("Scorers", Scorer),
    ("Pickers", Picker),
    ("Request processors", RequestProcessor),
    ("Hooks", ResponseHeadersHook),
)
_OTHER_ROLES = (
    Filter,
    Scorer,
    RequestProcessor,
    PreRequest,
    ResponseHeadersHook,
    FirstTokenHook,
    ResponseChunkHook,
    EndHook,
)

_INTRODUCTION = """\
# Plugins

Every plugin type of this version, in the order in which a request meets them. Written from the code by
`python -m epp.config.catalogue`. Names, parameters and defaults are llm-d's where it has the same thing.
Scorers return a score between 0 and 1 per candidate; a profile adds them up by weight.
"""


def catalogue(registry: Registry) -> str:
    """The Markdown page."""
    return "\n".join((_INTRODUCTION, *_sections(registry)))


def _sections(registry: Registry) -> Iterator[str]:
    classes = {cls.plugin_type: cls for name in registry if (cls := registry.get(name)) is not None}
    left = dict(sorted(classes.items()))
    for title, role in _SECTIONS:
        members = [cls for cls in left.values() if issubclass(cls, role)]
        if members:
            yield f"## {title}\n"
        for cls in members:
            del left[cls.plugin_type]
            yield from _plugin(cls, role)


def _plugin(cls: type[Plugin], role: type[Plugin]) -> Iterator[str]:
    yield f"### {cls.plugin_type}\n"
    remarks = [] if cls.stability is Stability.BETA else [cls.stability.value]
    remarks += [f"also {_role_name(other)}" for other in _OTHER_ROLES if other is not role and issubclass(cls, other)]
    remarks += [f"deprecated spelling `{alias}`" for alias in cls.aliases]
    if remarks:
        yield f"*{'; '.join(remarks)}*\n"
    yield f"{inspect.cleandoc(cls.__doc__ or '')}\n"
    rows = list(_parameters(cls.parameters_model, ""))
    if rows:
        yield "| parameter | type | default | meaning |\n|---|---|---|---|"
        yield from rows
        yield ""


def _role_name(role: type[Plugin]) -> str:
    return {
        RequestProcessor: "sees each request first",
        PreRequest: "told of each choice",
        ResponseHeadersHook: "sees response headers",
        FirstTokenHook: "told of first tokens",
        ResponseChunkHook: "sees every chunk of responses",
        EndHook: "told how requests end",
    }.get(role, f"a {role.__name__.lower()}")


def _parameters(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield f"| `{path}` | {_type_text(field.annotation)} | {_default_text(field)} | {field.description or ''} |"
        for nested, suffix in _nested(field.annotation):
            yield from _parameters(nested, f"{path}{suffix}.")


def _nested(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """The models inside a type, each with `[]` when it is an element of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
        return
    suffix = "[]" if typing.get_origin(annotation) in (list, tuple) else ""
    for argument in typing.get_args(annotation):
        for model, inner in _nested(argument):
            yield model, suffix + inner


def _type_text(annotation: Any) -> str:
    if annotation is None or annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(a) for a in arguments if a is not type(None))
    if origin in (list, tuple):
        return f"list of {_type_text(arguments[0])}"
    if origin is dict or annotation is Any:
        return "object"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return {str: "string", int: "integer", float: "number", bool: "boolean"}.get(annotation, "value")


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or isinstance(default, BaseModel):
        return ""
    return f"`{json.dumps(default, default=_dumped)}`"


def _dumped(model: BaseModel) -> Any:
    return model.model_dump(by_alias=True, exclude_none=True)


if __name__ == "__main__":
    print(catalogue(Registry.discover()), end="")
