"""Pages that are written from the code say what the code says."""

from pathlib import Path

import pytest

from epp.config.catalogue import catalogue
from epp.conformance.command import clauses
from epp.scheduling.registry import Registry
from epp.wire.table import as_markdown

DOCS = Path(__file__).parent.parent / "docs"


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
