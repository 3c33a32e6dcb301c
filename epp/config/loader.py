"""Configuration text to plain values, each with the line it stands on.

Kubernetes reads YAML by turning it into JSON first, with the scalars of YAML 1.1 as its Go library knows them: `yes`
and `off` are booleans, `010` is eight, `1e3` is a number, a date is just text. A file that works there must mean the
same here, so scalars are read by those rules and not by PyYAML's own, and duplicate keys are refused.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from epp.config.errors import ConfigError, KeyPath, Remark, format_path, printable, shown

MAX_DEPTH = 50
MAX_VALUES = 100_000  # aliases of aliases can grow without bound
MAX_DIGITS = 300  # of a number; Python itself refuses to read one of thousands

_TRUE = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
_FALSE = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(?:0b[01]+|0x[0-9a-fA-F]+|0o?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PLAIN = "plain"  # the tag we give to a scalar without quotes and without a tag of its own
_CORE = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration as plain JSON values, and where each of them stands.

    Attributes:
        lines: 1-based line by path; for the value of a key, the line of the key.
    """

    filename: str
    value: Any
    lines: Mapping[KeyPath, int]

    def exists(self, path: KeyPath) -> bool:
        return path in self.lines

    def line(self, path: KeyPath) -> int | None:
        """Line of the value, or of the nearest thing around it; `None` if its top-level key is not in the file."""
        while len(path) > 1 and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def remark(self, path: KeyPath, message: str, fix: str = "") -> Remark:
        return Remark(self.filename, self.line(path), format_path(path), message, fix)


def load_document(text: str, filename: str) -> Document:
    """Read YAML or JSON.

    Raises:
        ConfigError: broken syntax, a duplicate key, or what JSON cannot say.
    """
    try:
        node = yaml.compose(_without_json_tabs(text), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(filter(None, (error.context, error.problem)))
        line = mark.line + 1 if mark else None
        raise ConfigError([Remark(filename, line, "", f"not valid YAML: {printable(what)}")]) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or "it cannot be read"
        raise ConfigError([Remark(filename, None, "", f"not valid YAML: {printable(str(reason))}")]) from None
    except RecursionError:
        raise ConfigError([Remark(filename, None, "", "nested too deeply")]) from None
    if node is None:
        fix = "it starts with apiVersion: llm-d.ai/v1alpha1 and kind: EndpointPickerConfig"
        raise ConfigError([Remark(filename, None, "", "the configuration is empty", fix)])
    reader = _Reader(filename)
    value = reader.read(node, ())
    if reader.problems:
        raise ConfigError(reader.problems)
    return Document(filename, value, reader.lines)


def _without_json_tabs(text: str) -> str:
    """JSON may be indented with tabs, YAML may not. Valid JSON has tabs between its tokens only."""
    if "\t" in text and text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return text
        return text.replace("\t", " ")
    return text


class _Loader(yaml.SafeLoader):
    """Leaves plain scalars unresolved, so that `_Reader` can read them by Go's rules."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


class _Reader:
    """Nodes to values, collecting lines and problems on the way."""

    def __init__(self, filename: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Remark] = []
        self._filename = filename
        self._count = 0

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if len(path) > MAX_DEPTH or self._count > MAX_VALUES:
            self._problem(node, path[:1], "nested too deeply" if len(path) > MAX_DEPTH else "too many values")
            raise ConfigError(self.problems)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_CORE}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_CORE}seq":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._problem(node, path, f"the tag {shown(node.tag)} is not supported", "remove it")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be a plain word", "quote it")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key == "<<" and key_node.tag == _PLAIN:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if key in first_lines:
                message = f"duplicate key '{printable(key)}', first on line {first_lines[key]}"
                self._problem(key_node, (*path, key), message, "remove one of them")
                continue
            first_lines[key] = self.lines[(*path, key)] = line
            result[key] = self.read(value_node, (*path, key))
        for other in merged:
            value = self.read(other, (*path, "<<"))
            if not isinstance(value, dict):
                self._problem(other, path, "only mappings can be merged with <<")
                continue
            for key in value:
                if key not in result:
                    result[key] = value[key]
                    self.lines[(*path, key)] = other.start_mark.line + 1
        return result

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text, tag = node.value, node.tag
        if tag == f"{_CORE}str":
            return text
        if tag not in (_PLAIN, *(_CORE + name for name in ("int", "float", "bool", "null"))):
            return self._problem(node, path, f"the tag {shown(tag)} is not supported", "remove it")
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        digits = text.replace("_", "")
        if len(digits) <= MAX_DIGITS and _INT.fullmatch(digits):
            return _integer(digits)
        if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
            return float(digits)
        if _NO_NUMBER.fullmatch(text):
            return self._problem(node, path, f"{text} is not a number that JSON can say", "write a finite number")
        return text

    def _problem(self, node: yaml.Node, path: KeyPath, message: str, fix: str = "") -> None:
        self.problems.append(Remark(self._filename, node.start_mark.line + 1, format_path(path), message, fix))


def _integer(digits: str) -> int:
    """Go's base 0: a leading 0 alone means octal."""
    sign, body = (-1, digits[1:]) if digits.startswith("-") else (1, digits.lstrip("+"))
    octal = len(body) > 1 and body[0] == "0" and body[1].isdigit()
    return sign * (int(body, 8) if octal else int(body, 0))
