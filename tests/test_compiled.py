"""What an installation says of how it was built, and the list of what a compiled one holds."""

import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from epp.compiled import compiled_modules

ROOT = Path(__file__).resolve().parent.parent


def test_extension_modules_are_counted(tmp_path: Path) -> None:
    assert compiled_modules(tmp_path) == 0
    (tmp_path / "wire").mkdir()
    for name in ("wire/codec", "wire/table", "ledger"):
        (tmp_path / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
        (tmp_path / f"{name}.py").touch()
    assert compiled_modules(tmp_path) == 3


def test_the_source_tree_holds_nothing_compiled() -> None:
    """There it would hide every later change of the sources."""
    assert compiled_modules(ROOT / "epp") == 0


def test_the_list_names_modules_that_there_are() -> None:
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["headroom"]["compile"]["modules"]
    assert modules == sorted(set(modules))
    assert [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []
