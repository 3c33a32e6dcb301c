"""Label selectors as Kubernetes writes them on a command line: `app=vllm,tier in (a, b),!canary,gpus>1`.

A selector is a list of requirements that must all hold. `notin` and `!=` hold for an object without the label, as in
Kubernetes. `>` and `<` compare whole numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?)/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_REQUIREMENT = re.compile(
    r"""\s*(?:
        !\s*(?P<absent>[^\s=!<>(),]+)
      | (?P<key>[^\s=!<>(),]+)\s*
        (?: (?P<set>\bin\b|\bnotin\b)\s*\((?P<values>[^()]*)\)
          | (?P<sign>==|=|!=|>|<)\s*(?P<value>[^\s=!<>(),]*)
        )?
    )\s*(?P<end>,|$)""",
    re.VERBOSE,
)
_EXAMPLE = "app=vllm,tier in (a,b),!canary"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition. `operator`: `in`, `notin`, `exists`, `!`, `gt` or `lt`; the last two have one value, a number."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        try:
            number, bound = int(value or ""), int(self.values[0])
        except ValueError:
            return False
        return number > bound if self.operator == "gt" else number < bound

    def __str__(self) -> str:
        match self.operator:
            case "exists":
                return self.key
            case "!":
                return f"!{self.key}"
            case "gt" | "lt":
                return f"{self.key}{'>' if self.operator == 'gt' else '<'}{self.values[0]}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.operator == 'in' else '!='}{self.values[0]}"
        return f"{self.key} {self.operator} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold; its text is what the API server is asked with."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


def is_label(key: object, value: object) -> bool:
    """Whether an object of Kubernetes can have this label."""
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and _KEY.fullmatch(key) is not None
        and _VALUE.fullmatch(value) is not None
    )


def match_labels(labels: Mapping[str, str]) -> Selector:
    """The selector of a map of labels, as InferencePools have it."""
    return Selector(tuple(Requirement(key, "in", (value,)) for key, value in sorted(labels.items())))


def parse_selector(text: str) -> Selector:
    """
    Raises:
        ValueError: it is not a selector, or an empty one, which would match every pod; the message is a clause.
    """
    requirements: list[Requirement] = []
    position = 0
    while position < len(text) or not requirements:
        found = _REQUIREMENT.match(text, position)
        if found is None or (found["end"] == "," and found.end() == len(text)):
            raise ValueError(f"{text[position : position + 60].strip()!r} is not a label requirement, e.g. {_EXAMPLE}")
        requirements.append(_requirement(found))
        position = found.end()
    return Selector(tuple(requirements))


def _requirement(found: "re.Match[str]") -> Requirement:
    key = found["absent"] or found["key"]
    parsed = _KEY.fullmatch(key)
    if parsed is None:
        raise ValueError(f"{key[:80]!r} is not a label key")
    if found["absent"]:
        return Requirement(key, "!")
    if found["set"]:
        values = tuple(sorted({value.strip() for value in found["values"].split(",")}))
        return _checked(Requirement(key, found["set"], values))
    match found["sign"]:
        case None:
            return Requirement(key, "exists")
        case "=" | "==":
            return _checked(Requirement(key, "in", (found["value"],)))
        case "!=":
            return _checked(Requirement(key, "notin", (found["value"],)))
        case sign:
            if not re.fullmatch(r"-?\d{1,18}", found["value"], re.ASCII):
                raise ValueError(f"{key}{sign}{found['value'][:60]} does not compare with a whole number")
            return Requirement(key, "gt" if sign == ">" else "lt", (found["value"],))


def _checked(requirement: Requirement) -> Requirement:
    for value in requirement.values:
        if not _VALUE.fullmatch(value):
            raise ValueError(f"{value[:80]!r} is not a label value")
    return requirement
