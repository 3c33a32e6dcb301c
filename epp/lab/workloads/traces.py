"""Recorded traces as workloads: Microsoft's CSV, Mooncake's JSONL, and the decisions that `/debug/state` shows.

A trace's times are scaled as a whole to the rate that is asked for. It has no seed: the same requests every time.
"""

import csv
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from epp.lab.experiment import LabRequest
from epp.lab.prompts import Prompt, Segment
from epp.lab.workloads.workload import Targets
from epp.problem import Problem
from epp.sim.text import BYTES_PER_TOKEN
from epp.sim.workload import Lengths

MOONCAKE_BLOCK_TOKENS = 512
CHAT_ANSWERS = Lengths(5.02, 0.86, 1_500)
"""Of Azure's conversations, as in the workload of that name."""
DEFAULT_TARGETS = Targets(2_000.0, 50.0)
DEFAULT_RUN_S = 120.0


class TraceRow(NamedTuple):
    """One request: seconds since the beginning of the trace, prompt, tokens of the answer."""

    at_s: float
    prompt: Prompt
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded trace. Fields as in `Workload`; `rows` in order of time."""

    name: str
    about: str
    rows: tuple[TraceRow, ...] = field(repr=False)
    targets: Targets = DEFAULT_TARGETS
    run_s: float = DEFAULT_RUN_S

    def requests(self, rate_rps: float, rng: random.Random) -> Iterator[LabRequest]:
        if not self.rows:
            return
        lasts_s = self.rows[-1].at_s or 1.0
        scale = len(self.rows) / lasts_s / rate_rps
        for row in self.rows:
            yield LabRequest(row.at_s * scale, row.prompt, row.output_tokens)


def read_trace(path: Path, most: int | None = None) -> Trace:
    """The trace in a file, at most `most` requests of it. Raises `Problem`."""
    reader = {".csv": _azure, ".json": _decisions}.get(path.suffix, _json_lines)
    try:
        with path.open(newline="") as file:
            rows = list(islice(reader(file), most))
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Problem(
            f"{path}: no trace ({error}); expected Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens) "
            "Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids) or a picker's /debug/state"
        ) from error
    if not rows:
        raise Problem(f"{path}: no requests in it")
    start_s = rows[0].at_s
    return Trace(path.stem, f"{len(rows)} requests of {path}", tuple(r._replace(at_s=r.at_s - start_s) for r in rows))


def _azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Lengths of 0 count as 1; nothing is known to be shared."""
    for number, line in enumerate(csv.DictReader(lines)):
        # Seven digits of a second's fraction are one more than Python reads.
        at_s = datetime.fromisoformat(line["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
        prompt = (Segment(number, max(1, int(line["ContextTokens"]))),)
        yield TraceRow(at_s, prompt, max(1, int(line["GeneratedTokens"])))


def _json_lines(lines: Iterable[str]) -> Iterator[TraceRow]:
    numbers = count(1)
    for line in lines:
        if line.strip():
            yield _mooncake(orjson.loads(line), numbers)


def _decisions(lines: Iterable[str]) -> Iterator[TraceRow]:
    """Of a saved `/debug/state`: when the last requests came, and how long their bodies were.

    Nothing of a prompt is recorded, so nothing is shared, and four bytes count as a token. Nor is how long an answer
    was: lengths of the conversation workload stand in, drawn the same every time.
    """
    rng = random.Random(1)
    decisions = orjson.loads("".join(lines))["decisions"]
    routed = [d for d in decisions if d["age_s"] is not None and d["request"] is not None and "denied" not in d]
    for number, decision in enumerate(sorted(routed, key=lambda d: -d["age_s"])):
        tokens = max(1, int(decision["request"]["body_bytes"]) // BYTES_PER_TOKEN)
        yield TraceRow(-float(decision["age_s"]), (Segment(number, tokens),), CHAT_ANSWERS.draw(rng))


def _mooncake(row: dict[str, Any], numbers: Iterator[int]) -> TraceRow:
    """`hash_ids` name blocks of 512 tokens, or of `block_tokens`; the rest after the last full one is its own."""
    tokens, block_tokens = max(1, int(row["input_length"])), int(row.get("block_tokens", MOONCAKE_BLOCK_TOKENS))
    full = row.get("hash_ids", ())[: tokens // block_tokens]
    rest = tokens - len(full) * block_tokens
    prompt = tuple(Segment(2 * int(block) + 1, block_tokens) for block in full)
    own = (Segment(2 * next(numbers), rest),) if rest else ()
    return TraceRow(float(row["timestamp"]) / 1e3, prompt + own, max(1, int(row["output_length"])))
