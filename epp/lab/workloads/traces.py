"""Recorded traces as workloads: Microsoft's CSV, Mooncake's JSONL, ours that `epp serve --record-trace` writes in its
form, and the decisions that `/debug/state` shows.

A trace's times are scaled as a whole to the rate that is asked for. It has no seed: the same requests every time.
"""

import csv
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from statistics import median_low
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Prompt, Segment
from epp.lab.workloads import fields
from epp.lab.workloads.fields import MOST_TOKENS
from epp.lab.workloads.workload import Targets
from epp.problem import Problem
from epp.sim.text import BYTES_PER_TOKEN
from epp.sim.workload import AZURE_CONV

MOONCAKE_BLOCK_TOKENS = 512
DEFAULT_TARGETS = Targets(2_000.0, 50.0)
DEFAULT_RUN_S = 120.0
SUFFIXES = (".csv", ".jsonl", ".json")
_LEAST_SPAN_S = 1e-9  # shorter: one moment, for every clock that there is


class TraceRow(NamedTuple):
    """One request: seconds since the beginning of the trace, prompt, tokens of the answer; and what the client said:
    the most tokens that it wants, its targets."""

    at_s: float
    prompt: Prompt
    output_tokens: int
    max_output_tokens: int | None = None
    ttft_target_ms: float | None = None
    tpot_target_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded trace. Fields as in `Workload`; `rows` in order of time."""

    name: str
    about: str
    rows: tuple[TraceRow, ...] = field(repr=False)
    targets: Targets = DEFAULT_TARGETS
    run_s: float = DEFAULT_RUN_S

    @property
    def most_requests(self) -> int:
        return len(self.rows)

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        if not self.rows:
            return
        lasts_s = self.rows[-1].at_s
        if lasts_s < _LEAST_SPAN_S:
            raise Problem(f"{self.about}, all at one time, so there is no rate to scale")
        scale = len(self.rows) / lasts_s / rate_rps
        for row in self.rows:
            yield LabRequest(row.at_s * scale, row.prompt, row.output_tokens, max_output_tokens=row.max_output_tokens)


def suffix_of(path: Path) -> str:
    """By which a trace's form is told: that of the name, but for the number that rotated files end with."""
    return Path(path.stem).suffix if path.suffix[1:].isdecimal() else path.suffix


def read_trace(path: Path, most: int | None = None) -> Trace:
    """The trace in a file, at most its first `most` requests, in order of time. Raises `Problem`."""
    reader = {".csv": _azure, ".json": _decisions}.get(suffix_of(path), _json_lines)
    place = _Place()
    try:
        # Spreadsheets write a byte order mark. What is no text is told of by `place`, which knows the line.
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = list(islice(reader(place.lines_of(file)), most))
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, ArithmeticError, csv.Error) as error:
        where = path if reader is _decisions else f"{path}:{place.line}"
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise Problem(f"{where}: cannot be read as a trace: {what}; {_FORMS[reader]}") from error
    if not rows:
        raise Problem(f"{path}: no requests in it")
    rows.sort(key=lambda row: row.at_s)
    start_s = rows[0].at_s
    return Trace(
        path.stem,
        f"{path}: {_as_recorded(len(rows), rows[-1].at_s - start_s)}",
        tuple(r._replace(at_s=r.at_s - start_s) for r in rows),
        targets=Targets(
            _middle([r.ttft_target_ms for r in rows], DEFAULT_TARGETS.ttft_ms),
            _middle([r.tpot_target_ms for r in rows], DEFAULT_TARGETS.tpot_ms),
        ),
    )


def _as_recorded(requests: int, lasts_s: float) -> str:
    count = f"{requests:,} request{'s' if requests > 1 else ''}"
    return count + (
        f" in {lasts_s:,.4g} s, {requests / lasts_s:.3g} rps as recorded" if lasts_s >= _LEAST_SPAN_S else ""
    )


def _middle(targets_ms: Iterable[float | None], otherwise_ms: float) -> float:
    """What half of the requests that state a target do not undercut: a run has one target for all."""
    stated = [target for target in targets_ms if target is not None]
    return median_low(stated) if stated else otherwise_ms


class _Place:
    """Which line of a file is being read."""

    line = 0

    def lines_of(self, file: Iterable[str]) -> Iterator[str]:
        """Raises ValueError where a line is no text."""
        for self.line, text in enumerate(file, 1):
            try:
                text.isascii() or text.encode()
            except UnicodeEncodeError as error:  # a byte that could not be decoded
                byte = ord(text[error.start]) & 0xFF
                raise ValueError(f"byte 0x{byte:02x} is not UTF-8; write the file as UTF-8 text") from None
            yield text


def _azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Nothing is known to be shared."""
    for number, line in enumerate(csv.DictReader(lines)):
        if None in (line["TIMESTAMP"], line["ContextTokens"], line["GeneratedTokens"]):
            raise ValueError("the line ends early")
        prompt = (Segment(number, fields.tokens(line, "ContextTokens")),)
        yield TraceRow(_unix_s(line, "TIMESTAMP"), prompt, fields.tokens(line, "GeneratedTokens"))


def _unix_s(line: Mapping[str, str], name: str) -> float:
    """Of a date and time, which is UTC where no offset from it is said. Raises ValueError."""
    try:
        when = datetime.fromisoformat(line[name].strip().removesuffix(" UTC"))
        return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise fields.wrong(name, line[name], "is not a date and time") from None


def _json_lines(lines: Iterable[str]) -> Iterator[TraceRow]:
    numbers, rng = count(1), random.Random(1)
    for line in lines:
        if line.strip():
            row = orjson.loads(line)
            if not isinstance(row, dict):
                raise ValueError("a line is no JSON object")
            stated = {name: value for name, value in row.items() if value is not None or name in _NEVER_NULL}
            # A request that was answered with an error was no work.
            if "status" not in stated or fields.number(stated, "status") < 400:
                yield _mooncake(stated, line, numbers, rng)


def _decisions(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Of a saved `/debug/state`: when the last requests came, and how long their bodies were.

    Nothing of a prompt is recorded, so nothing is shared, and four bytes count as a token. Nor is how long an answer
    was: lengths of the conversation workload stand in, drawn the same every time.
    """
    rng = random.Random(1)
    state = orjson.loads("".join(lines))
    decisions = state["decisions"] if isinstance(state, dict) else None
    if not isinstance(decisions, list) or not all(isinstance(decision, dict) for decision in decisions):
        raise ValueError("no list of decisions in it")
    routed = [d for d in decisions if d["age_s"] is not None and d["request"] is not None and "denied" not in d]
    aged = sorted(((fields.seconds(d, "age_s", 1.0), d["request"]) for d in routed), key=lambda pair: -pair[0])
    for number, (age_s, request) in enumerate(aged):
        if not isinstance(request, dict):
            raise fields.wrong("request", request, "is not an object")
        size_bytes = fields.whole(request, "body_bytes", least=0, most=MOST_TOKENS * BYTES_PER_TOKEN, unit=" bytes")
        yield TraceRow(-age_s, (Segment(number, max(1, size_bytes // BYTES_PER_TOKEN)),), AZURE_CONV.output.draw(rng))


_NEVER_NULL = ("timestamp", "input_length", "output_length", "hash_ids")  # others are as good as absent then


def _mooncake(row: dict[str, Any], line: str, numbers: Iterator[int], rng: random.Random) -> TraceRow:
    """`hash_ids` name blocks of 512 tokens, or of `block_tokens`; the rest after the last full one is its own.

    An answer of unknown length (null) is as long as one of the conversation workload, drawn the same every time, and
    not longer than its client wanted.
    """
    tokens, block_tokens = fields.tokens(row, "input_length"), MOONCAKE_BLOCK_TOKENS
    if "block_tokens" in row:
        block_tokens = fields.whole(row, "block_tokens", least=1, most=MOST_TOKENS, unit=" tokens")
    full = fields.block_numbers(row, "hash_ids", line)[: tokens // block_tokens]
    rest = tokens - len(full) * block_tokens
    prompt = tuple(Segment(2 * block + 1, block_tokens) for block in full)
    own = (Segment(2 * next(numbers), rest),) if rest else ()
    limit = None
    if "max_output_tokens" in row:
        limit = max(1, min(fields.whole(row, "max_output_tokens", least=0, most=None, unit=" tokens"), MOST_TOKENS))
    if row["output_length"] is not None:
        output_tokens = fields.tokens(row, "output_length")
    else:
        output_tokens = min(AZURE_CONV.output.draw(rng), MOST_TOKENS if limit is None else limit)
    return TraceRow(
        fields.seconds(row, "timestamp", 1e3),
        prompt + own,
        output_tokens,
        None if limit is None else max(limit, output_tokens),
        fields.target_ms(row, "ttft_target_ms"),
        fields.target_ms(row, "tpot_target_ms"),
    )


_FORMS: Mapping[Callable[[Iterable[str]], Iterator[TraceRow]], str] = MappingProxyType(
    {
        _azure: "a .csv is in Azure's form: columns TIMESTAMP (2023-11-16 18:15:46.68), ContextTokens, GeneratedTokens",
        _json_lines: "a line is in Mooncake's form: an object with timestamp (ms), input_length and output_length "
        "(tokens), perhaps hash_ids",
        _decisions: "a .json is a saved /debug/state of a picker; JSON lines are called .jsonl",
    }
)
"""What is expected of a file, by who reads it."""
