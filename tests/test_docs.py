"""Pages that are written from the code say what the code says, and those that name tests name tests that exist."""

import re
from pathlib import Path

import pytest

from epp.config.catalogue import catalogue
from epp.conformance.command import clauses
from epp.scheduling.registry import Registry
from epp.wire.table import as_markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    ("page", "written", "command"),
    [
        ("plugins.md", catalogue(Registry.discover()), "python -m epp.config.catalogue > docs/plugins.md"),
        ("conformance.md", clauses(), "replace the clauses by those of epp conformance --list"),
        ("conversation.md", as_markdown(), "replace the tables by python -m epp.wire.table"),
    ],
)
def test_generated_pages_are_up_to_date(page: str, written: str, command: str) -> None:
    assert (DOCS / page).read_text().rstrip().endswith(written.rstrip()), f"docs/{page} is out of date: {command}"


def test_every_test_that_the_reliability_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]+?\.py)::(\w+)`", (DOCS / "reliability.md").read_text()))
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).is_file()
        or not re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_the_faults_of_the_reliability_page_have_tests() -> None:
    """Every row of its tables of faults names one."""
    text = (DOCS / "reliability.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    faults = rows[: rows.index("| theirs | ours |")]
    assert len(faults) > 30
    assert [row for row in faults if "::test_" not in row] == []
