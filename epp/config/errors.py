"""What is said about a configuration: where, what, and how to mend it, one line each."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epp.problem import Problem

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to say about one place in a configuration.

    Attributes:
        line: 1-based; `None` when the file has no such place.
        path: e.g. `plugins[2].parameters.blockSize`; empty for the whole file.
        fix: what to do about it; empty when the message says it already.
    """

    filename: str
    line: int | None
    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        place = self.filename if self.line is None else f"{self.filename}:{self.line}"
        what = f"{self.path}: {self.message}" if self.path else self.message
        return f"{place}: {what}; {self.fix}" if self.fix else f"{place}: {what}"


class ConfigError(Problem):
    """A configuration that cannot be used. Its text is one line per problem, in the order of the file."""

    def __init__(self, problems: Sequence[Remark]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: math.inf if p.line is None else p.line))
        super().__init__("\n".join(map(str, self.problems)))


def format_path(path: KeyPath) -> str:
    """`("plugins", 2, "name")` as `plugins[2].name`; keys that are no plain words are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f'["{printable(part)}"]'
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion out of `known`; empty when nothing is near."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean '{by_lower[near[0]]}'?" if near else ""


def shown(value: object) -> str:
    """A value as messages show it: short, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = printable(f'"{value}"' if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def printable(text: str) -> str:
    """Text from the file as it may stand in a message: on one line, nothing invisible."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
