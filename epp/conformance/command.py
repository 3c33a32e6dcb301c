"""What `epp conformance` does."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from epp.conformance import recording, report, suite
from epp.conformance.broken import RuleBroken
from epp.conformance.check import Check, Expectations
from epp.conformance.connection import Connection, Target
from epp.conformance.recording import Recorder
from epp.conformance.replay import replay
from epp.conformance.suite import Result
from epp.files import write
from epp.problem import Problem


@dataclass(frozen=True, slots=True)
class Options:
    """
    Attributes:
        only: names, groups or shell patterns of checks; empty: all.
        json_file: where the results go as JSON besides.
        record_file: where all conversations are recorded.
    """

    target: Target
    known: Expectations
    only: Sequence[str] = ()
    json_file: Path | None = None
    record_file: Path | None = None
    timeout_s: float = 10.0


def conformance(options: Options) -> int:
    """Run the checks, progress on stderr and a table on stdout. 1 when a MUST failed, else 0. Raises `Problem`."""
    checks = suite.chosen(options.only)
    with ExitStack() as files:
        recorder = None
        if options.record_file is not None:
            try:
                recorder = Recorder(files.enter_context(options.record_file.open("w", encoding="utf-8")))
            except OSError as error:
                raise Problem(f"{options.record_file}: cannot be written: {error.strerror}") from error
        results = asyncio.run(_run(options, checks, recorder))
    print(report.table(results))
    if options.json_file is not None:
        write(options.json_file, report.as_json(str(options.target), results).encode())
    return 1 if any(result.fatal for result in results) else 0


def replay_recorded(file: Path, target: Target, timeout_s: float) -> int:
    """Replay a file of recorded conversations, and print what differs. 1 when anything does, else 0."""
    return asyncio.run(_replay(recording.load(file), target, timeout_s))


def clauses() -> str:
    """Every clause, as Markdown."""
    return report.as_markdown(suite.all_checks())


async def _run(options: Options, checks: Sequence[Check], recorder: Recorder | None) -> list[Result]:
    results: list[Result] = []
    run = suite.run(checks, options.target, options.known, timeout_s=options.timeout_s, recorder=recorder)
    async for result in run:
        results.append(result)
        print(f"{len(results)}/{len(checks)} {result.check.name}: {result.verdict}", file=sys.stderr, flush=True)
    return results


async def _replay(streams: Sequence[Sequence[recording.Line]], target: Target, timeout_s: float) -> int:
    differing = 0
    async with Connection(target, timeout_s) as connection:
        for number, lines in enumerate(streams, 1):
            try:
                differences = await replay(lines, connection, timeout_s)
            except RuleBroken as broken:
                differences = [str(broken)]
            for difference in differences:
                print(f"stream {number}: {difference}")
            differing += bool(differences)
    print(f"{len(streams)} conversations, {differing} with differences")
    return 1 if differing else 0
