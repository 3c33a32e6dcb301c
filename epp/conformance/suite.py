"""All checks, and how they are run against a target."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from epp.conformance.broken import RuleBroken
from epp.conformance.check import Bench, Check, Expectations, Failed, Level, NotApplicable
from epp.conformance.checks import (
    bodies,
    destination,
    drain,
    headers,
    health,
    modes,
    refusals,
    requests,
    responses,
    streams,
    subset_hint,
)
from epp.conformance.connection import Connection, Target
from epp.conformance.recording import Recorder
from epp.conformance.stub import Envoy
from epp.problem import Problem

_GROUPS = (destination, subset_hint, requests, headers, bodies, modes, responses, refusals, streams, health, drain)


def all_checks() -> list[Check]:
    """Every check, by group, in the order of the files; those that end the target come last."""
    checks = []
    for group in _GROUPS:
        checks += [value for value in vars(group).values() if isinstance(value, Check)]
        if group is modes:
            checks += modes.PAIRS
    return checks


def chosen(patterns: Sequence[str]) -> list[Check]:
    """The checks whose name or group matches a shell pattern, or has it as a part. All of them without patterns.

    Raises `Problem` for a pattern that no check matches.
    """
    checks = all_checks()
    for pattern in patterns:
        if not any(_matches(check, pattern) for check in checks):
            raise Problem(f"--only {pattern}: no check has such a name or group; --list names them")
    return [c for c in checks if not patterns or any(_matches(c, pattern) for pattern in patterns)]


def _matches(check: Check, pattern: str) -> bool:
    return any(fnmatchcase(text, pattern) or pattern in text for text in (check.name, check.group))


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """
    Attributes:
        sentence: what was seen instead, or what it takes to be checked; empty for what passed.
    """

    check: Check
    verdict: Verdict
    sentence: str = ""

    @property
    def fatal(self) -> bool:
        return self.verdict is Verdict.FAILED and self.check.level is Level.MUST


async def run(
    checks: Sequence[Check],
    target: Target,
    known: Expectations,
    *,
    timeout_s: float = 10.0,
    recorder: Recorder | None = None,
) -> AsyncIterator[Result]:
    """Run checks one after the other, each on a connection of its own. Raises `Problem` if the target is not there."""
    async with Connection(target, timeout_s):
        pass
    for check in checks:
        yield await run_one(check, target, known, timeout_s=timeout_s, recorder=recorder)


async def run_one(
    check: Check, target: Target, known: Expectations, *, timeout_s: float = 10.0, recorder: Recorder | None = None
) -> Result:
    # A check makes several waits, each with its own timeout; this bounds a target that trickles.
    try:
        async with asyncio.timeout(12 * timeout_s), Envoy(target, timeout_s, recorder) as envoy:
            await check.body(Bench(target, envoy, known, timeout_s))
    except NotApplicable as why:
        return Result(check, Verdict.SKIPPED, str(why))
    except TimeoutError:
        return Result(check, Verdict.FAILED, "It took too long.")
    except (Failed, RuleBroken, Problem) as broken:
        return Result(check, Verdict.FAILED, str(broken))
    except ExceptionGroup as group:
        first = _first(group)
        if not isinstance(first, Failed | RuleBroken):
            raise
        return Result(check, Verdict.FAILED, str(first))
    return Result(check, Verdict.PASSED)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
