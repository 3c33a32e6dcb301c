"""Recorded traces as workloads: Microsoft's CSV, Mooncake's JSONL, ours that `epp serve --record-trace` writes in its
form, and the decisions that `/debug/state` shows.

A trace's times are scaled as a whole to the rate that is asked for. It has no seed: the same requests every time.
"""

import csv
import math
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
from epp.lab.workloads.workload import Targets
from epp.problem import Problem
from epp.sim.text import BYTES_PER_TOKEN
from epp.sim.workload import AZURE_CONV

MOONCAKE_BLOCK_TOKENS = 512
DEFAULT_TARGETS = Targets(2_000.0, 50.0)
DEFAULT_RUN_S = 120.0
MOST_TOKENS = 10_000_000
"""Of a prompt or an answer: beyond any context. Prompts become real bytes, so a slip could take all memory."""


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
        if lasts_s <= 0.0:
            raise Problem(f"{self.about}, all at one time, so there is no rate to scale")
        scale = len(self.rows) / lasts_s / rate_rps
        for row in self.rows:
            yield LabRequest(row.at_s * scale, row.prompt, row.output_tokens, max_output_tokens=row.max_output_tokens)


def read_trace(path: Path, most: int | None = None) -> Trace:
    """The trace in a file, at most its first `most` requests, in order of time. Raises `Problem`."""
    reader = {".csv": _azure, ".json": _decisions}.get(path.suffix, _json_lines)
    place = _Place()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
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
    return count + (f" in {lasts_s:,.4g} s, {requests / lasts_s:.3g} rps as recorded" if lasts_s > 0.0 else "")


def _middle(targets_ms: Iterable[float | None], otherwise_ms: float) -> float:
    """What half of the requests that state a target do not undercut: a run has one target for all."""
    stated = [target for target in targets_ms if target is not None]
    return median_low(stated) if stated else otherwise_ms


class _Place:
    """Which line of a file is being read."""

    line = 0

    def lines_of(self, file: Iterable[str]) -> Iterator[str]:
        for self.line, text in enumerate(file, 1):
            yield text


def _tokens(value: Any) -> int:
    """A length; 0 counts as 1. Raises ValueError."""
    tokens = int(value)
    if not 0 <= tokens <= MOST_TOKENS:
        raise ValueError(f"{tokens} tokens, where 0 to {MOST_TOKENS} make sense")
    return max(1, tokens)


def _seconds(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no time")
    return value


def _azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Nothing is known to be shared."""
    for number, line in enumerate(csv.DictReader(lines)):
        # Seven digits of a second's fraction are one more than Python reads.
        when, context, generated = line["TIMESTAMP"], line["ContextTokens"], line["GeneratedTokens"]
        if when is None or context is None or generated is None:
            raise ValueError("the line ends early")
        at_s = datetime.fromisoformat(when[:26]).replace(tzinfo=UTC).timestamp()
        yield TraceRow(at_s, (Segment(number, _tokens(context)),), _tokens(generated))


def _json_lines(lines: Iterable[str]) -> Iterator[TraceRow]:
    numbers, rng = count(1), random.Random(1)
    for line in lines:
        if line.strip():
            row = orjson.loads(line)
            if not isinstance(row, dict):
                raise ValueError("a line is no JSON object")
            if (row.get("status") or 200) < 400:  # a request that was answered with an error was no work
                yield _mooncake(row, numbers, rng)


def _decisions(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Of a saved `/debug/state`: when the last requests came, and how long their bodies were.

    Nothing of a prompt is recorded, so nothing is shared, and four bytes count as a token. Nor is how long an answer
    was: lengths of the conversation workload stand in, drawn the same every time.
    """
    rng = random.Random(1)
    decisions = orjson.loads("".join(lines))["decisions"]
    routed = [d for d in decisions if d["age_s"] is not None and d["request"] is not None and "denied" not in d]
    for number, decision in enumerate(sorted(routed, key=lambda d: -d["age_s"])):
        tokens = _tokens(int(decision["request"]["body_bytes"]) // BYTES_PER_TOKEN)
        yield TraceRow(_seconds(-float(decision["age_s"])), (Segment(number, tokens),), AZURE_CONV.output.draw(rng))


def _mooncake(row: dict[str, Any], numbers: Iterator[int], rng: random.Random) -> TraceRow:
    """`hash_ids` name blocks of 512 tokens, or of `block_tokens`; the rest after the last full one is its own.

    An answer of unknown length (null) is as long as one of the conversation workload, drawn the same every time, and
    not longer than its client wanted.
    """
    tokens, block_tokens = _tokens(row["input_length"]), _tokens(row.get("block_tokens", MOONCAKE_BLOCK_TOKENS))
    full = row.get("hash_ids", ())[: tokens // block_tokens]
    rest = tokens - len(full) * block_tokens
    prompt = tuple(Segment(2 * int(block) + 1, block_tokens) for block in full)
    own = (Segment(2 * next(numbers), rest),) if rest else ()
    output_length, limit = row["output_length"], row.get("max_output_tokens")
    if output_length is not None:
        output_tokens = _tokens(output_length)
    else:
        output_tokens = min(AZURE_CONV.output.draw(rng), MOST_TOKENS if limit is None else _tokens(limit))
    return TraceRow(
        _seconds(float(row["timestamp"]) / 1e3),
        prompt + own,
        output_tokens,
        None if limit is None else max(min(int(limit), MOST_TOKENS), output_tokens),
        _target(row.get("ttft_target_ms")),
        _target(row.get("tpot_target_ms")),
    )


def _target(value: Any) -> float | None:
    """Raises ValueError."""
    if value is None:
        return None
    target_ms = _seconds(float(value))
    if target_ms <= 0.0:
        raise ValueError(f"{value} ms is no target")
    return target_ms


_FORMS: Mapping[Callable[[Iterable[str]], Iterator[TraceRow]], str] = MappingProxyType(
    {
        _azure: "a .csv is in Azure's form: columns TIMESTAMP (2023-11-16 18:15:46.68), ContextTokens, GeneratedTokens",
        _json_lines: "a line is in Mooncake's form: an object with timestamp (ms), input_length and output_length "
        "(tokens), perhaps hash_ids",
        _decisions: "a .json is a saved /debug/state of a picker; JSON lines are called .jsonl",
    }
)
"""What is expected of a file, by who reads it."""
