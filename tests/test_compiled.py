"""What an installation says of how it was built, and the list of what a compiled one holds."""

import os
import shutil
import subprocess
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

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


# --- when it is compiled ----------------------------------------------------------------------------------------------

# In the place of Python: makes what the recipe looks for, and notes for each wheel the compiler that it was told.
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv"*) mkdir -p .venv-compiled/bin && cp "$0" .venv-compiled/bin/python ;;
    "-m pip wheel"*) echo "${CC-unset}" >> wheels ;;
    -c*) echo .venv-compiled ;;
esac
"""


def program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make: when to compile again is NOT tested")
def test_a_source_that_is_gone_or_new_or_changed_compiles_again_and_nothing_else_does(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    sources = [tmp_path / "epp" / name for name in ("kept.py", "gone.py", "new.py")]
    others = [tmp_path / name for name in ("pyproject.toml", "proto/build_hook.py", ".venv/.installed-demo")]
    for path in (*sources[:2], *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9, 1e9))
    os.utime(others[2])  # it is installed later than what it is made of changed
    program(tmp_path / ".venv/bin/python", PYTHON)

    make = ["make", ".venv-compiled/.built"]
    environment = {"PATH": os.environ["PATH"], "CC": " "}  # nothing of a make that runs the tests

    def wheels() -> int:
        """So many were made when it has been made twice."""
        for _ in range(2):
            subprocess.run(make, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
        compilers = (tmp_path / "wheels").read_text().split()
        assert set(compilers) == {"unset"}  # a blank one cannot compile
        return len(compilers)

    kept, gone, new = sources
    assert wheels() == 1
    gone.unlink()
    assert wheels() == 2
    new.touch()
    os.utime(new, (1e9, 1e9))  # unpacked, or moved from elsewhere
    assert wheels() == 3
    made_ns = (tmp_path / ".venv-compiled/.built").stat().st_mtime_ns
    os.utime(kept, ns=(made_ns + 1, made_ns + 1))
    assert wheels() == 4


@pytest.mark.parametrize(
    ("compiler", "there"), [("gcc -O2", True), (" gcc", True), ("clang -O2", False), ("", False), ("  ", False)]
)
def test_ci_finds_the_compiler_whatever_flags_follow_it(compiler: str, there: bool, tmp_path: Path) -> None:
    """Where there is a gcc and neither a clang nor a cc."""
    programs = tmp_path / "programs"
    for name in ("python3", "id", "gcc"):
        program(programs / name)
    program(programs / "make", '#!/bin/sh\necho "make $*"\n')
    for name in ("bash", "sh", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    for name in ("kube-apiserver", "etcd"):
        program(tmp_path / "kube" / "bin" / name)
    ran = subprocess.run(
        [programs / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(programs), "HEADROOM_KUBE_CACHE": str(tmp_path / "kube"), "CC": compiler},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("make test-compiled" in ran.stdout.splitlines()) is there
    named = compiler.split() or ["cc"]
    assert (f"SKIPPED: make test-compiled. There is no C compiler here ({named[0]})." in ran.stdout) is not there
