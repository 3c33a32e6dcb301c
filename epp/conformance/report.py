"""Results and clauses as text: a table for people, JSON for machines, Markdown for the documentation."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby

from epp.conformance.check import Check, Level
from epp.conformance.suite import Result, Verdict


def table(results: Sequence[Result]) -> str:
    """One line per check, and a last one that counts."""
    rows = [("CHECK", "LEVEL", "RESULT", "")]
    for result in results:
        sentence = result.sentence or result.check.demand
        if result.verdict is Verdict.FAILED:
            sentence = f"{result.sentence} (Demanded: {result.check.demand})"
        rows.append((result.check.name, result.check.level, result.verdict, sentence))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join([*map(str.rstrip, lines), "", summary(results)])


def summary(results: Sequence[Result]) -> str:
    return "; ".join(
        f"{level}: " + ", ".join(f"{_count(results, level, verdict)} {verdict.lower()}" for verdict in Verdict)
        for level in Level
    )


def as_json(target: str, results: Sequence[Result]) -> str:
    checks = [
        {
            "name": result.check.name,
            "group": result.check.group,
            "level": result.check.level,
            "result": result.verdict.lower(),
            "demand": result.check.demand,
            "sentence": result.sentence,
        }
        for result in results
    ]
    conforms = not any(result.fatal for result in results)
    return json.dumps({"target": target, "conforms": conforms, "checks": checks}, indent=2) + "\n"


def as_markdown(checks: Iterable[Check]) -> str:
    """The clauses, by group."""
    lines = []
    for group, members in groupby(checks, key=lambda check: check.group):
        lines += [f"## {group.capitalize()}", "", "| check | level | what is demanded |", "|---|---|---|"]
        lines += [f"| `{check.name}` | {check.level} | {check.demand} |" for check in members]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _count(results: Iterable[Result], level: Level, verdict: Verdict) -> int:
    return sum(result.check.level is level and result.verdict is verdict for result in results)
