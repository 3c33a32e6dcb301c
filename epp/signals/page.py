"""Reading a few families out of a Prometheus text page.

A vLLM page has some 500 lines, and a picker that looks at every server many times a second needs six of them. So the
page is not parsed: one search finds the lines that begin with a wanted name, and only those are read. Labels hardly
ever change from page to page, so a reader remembers those of the page before and parses only what is new.

The page comes from a machine that may be broken, restarting or not a model server at all. Reading never raises. A value
that is NaN, infinite or negative is `None`: nothing that a picker reads can be any of these.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_LINES_PER_FAMILY = 4096

# Possessive all through, so that no line can make them slow.
# label="value", where the value may hold \" \\ \n, braces and commas.
_LABEL = re.compile(rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*+(,?+)')
_LABELS_END = re.compile(rb"[ \t]*+\}")
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_NUMBER = re.compile(rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_NOT_FINITE = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_ANY_SAMPLE = re.compile(rb"\n[a-zA-Z_:][a-zA-Z0-9_:]*+(?:\{[^\n]*\})?[ \t]++[+-]?(?:[0-9.]|nan|inf)", re.IGNORECASE)

_NO_LABELS: Mapping[str, str] = {}


class Sample(NamedTuple):
    """One series: `value` is finite and not negative, or `None` if what the page says is neither."""

    labels: Mapping[str, str]
    value: float | None


Samples = Mapping[str, tuple[Sample, ...]]


@dataclass(frozen=True, slots=True)
class Page:
    """What was wanted of a page.

    Attributes:
        samples: by family; a family that the page does not have is absent. Of a series that is there twice the one with
            the later timestamp stands, else the later one. A family of more than `MAX_LINES_PER_FAMILY` lines is
            absent: to read half of it would be to report half a load.
        is_metrics: false for a page that is no metrics page (empty, HTML, garbage); its samples are empty.
    """

    samples: Samples
    is_metrics: bool


class PageReader:
    """Reads `families` from the pages of one server, one page after the other."""

    def __init__(self, families: Iterable[str]) -> None:
        self._families = {family.encode(): family for family in families}
        names = b"|".join(re.escape(name) for name in self._families)
        # Nothing captured and nothing before the names: so the search runs at the speed of finding their common prefix.
        self._line = re.compile(rb"\n(?:" + names + rb")(?=[{ \t])")
        self._labels: dict[bytes, Mapping[str, str]] = {}

    def read(self, data: bytes) -> Page:
        """What the text page `data` says. Never raises."""
        data = b"\n" + data
        labels_before, self._labels = self._labels, {}
        found: dict[bytes, dict[bytes, tuple[float, Sample]]] = {name: {} for name in self._families}
        lines = dict.fromkeys(found, 0)
        for match in self._line.finditer(data) if found else ():
            name = match.group()[1:]
            lines[name] += 1
            if lines[name] > MAX_LINES_PER_FAMILY:
                continue
            end = data.find(b"\n", match.end())
            raw_labels, rest = _split_labels(data[match.end() : end if end >= 0 else len(data)])
            labels = labels_before.get(raw_labels) or _read_labels(raw_labels)
            read = _read_value(rest)
            if labels is None or read is None:
                continue
            self._labels[raw_labels] = labels
            timestamp, value = read
            series = found[name]
            if raw_labels not in series or timestamp >= series[raw_labels][0]:
                series[raw_labels] = timestamp, Sample(labels, value)
        samples = {
            self._families[name]: tuple(sample for _, sample in series.values())
            for name, series in found.items()
            if series and lines[name] <= MAX_LINES_PER_FAMILY
        }
        return Page(samples, is_metrics=any(lines.values()) or _ANY_SAMPLE.search(data) is not None)


def unlabelled_value(data: bytes, family: str) -> float | None:
    """The value of a series without labels; `None` if the page has no sensible one. Cheaper than a reader."""
    data = b"\n" + data
    name = f"\n{family}".encode()
    at = data.find(name + b" ")
    if at < 0:
        return None
    start = at + len(name)
    end = data.find(b"\n", start)
    read = _read_value(data[start : end if end >= 0 else len(data)])
    return None if read is None else read[1]


def _split_labels(rest: bytes) -> tuple[bytes, bytes]:
    """What follows the name on a line: its `{…}` (empty if there is none), and the value with its timestamp."""
    rest = rest.lstrip(b" \t")
    end = rest.rfind(b"}") + 1 if rest.startswith(b"{") else 0
    return rest[:end], rest[end:]


def _read_labels(raw: bytes) -> Mapping[str, str] | None:
    """The labels in `{…}`; `None` if they are malformed."""
    if not raw:
        return _NO_LABELS
    labels: dict[str, str] = {}
    at = 1
    while match := _LABEL.match(raw, at):
        labels[match[1].decode("ascii")] = _label_value(match[2])
        at = match.end()
        if not match[3]:
            break
    return labels if _LABELS_END.fullmatch(raw, at) else None


def _label_value(raw: bytes) -> str:
    if b"\\" in raw:
        raw = _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], raw)
    return raw.decode("utf-8", "replace")


def _read_value(rest: bytes) -> tuple[float, float | None] | None:
    """Timestamp (-inf if there is none) and value; `None` if there is no number."""
    words = rest.split(None, 2)
    if not words:
        return None
    if _NUMBER.fullmatch(words[0]):
        number = float(words[0])
        value = number if 0 <= number < math.inf else None
    elif _NOT_FINITE.fullmatch(words[0]):
        value = None
    else:
        return None
    timestamp = float(words[1]) if len(words) > 1 and _NUMBER.fullmatch(words[1]) else -math.inf
    return timestamp, value
