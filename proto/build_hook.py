"""What a build makes of the sources: protobuf modules always, and on request some modules compiled by mypyc.

Hatchling runs it for every build. `epp/wire/*_pb2.py` and their types are written from the `.proto` files beside this
one; by hand: `python proto/build_hook.py`.

With HEADROOM_COMPILE=1 a wheel also holds extension modules for what `[tool.headroom.compile]` in pyproject.toml lists
(a C compiler is needed). Python prefers them to the `.py` files, which stay beside them for tracebacks. They are made
in a temporary copy and never put into the source tree, where they would hide every later change of the sources; an
editable installation therefore has none.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_DIR = Path(__file__).resolve().parent
FILES = ("ext_proc.proto", "access_log.proto")
COMPILE = "HEADROOM_COMPILE"


def generate(root: Path) -> None:
    """Run protoc over our files, as if they lay beside the package that they become modules of.

    Raises:
        RuntimeError: protoc found a fault in a file; it has said so on stderr.
    """
    from grpc_tools import protoc  # not there while hatchling asks for `dependencies`' sake alone

    arguments = [
        "protoc",
        f"--proto_path=epp/wire={PROTO_DIR}",
        # protoc's own copies of google/protobuf/*.proto
        f"--proto_path={Path(protoc.__file__).parent / '_proto'}",
        f"--python_out={root}",
        f"--pyi_out={root}",
        *(f"epp/wire/{name}" for name in FILES),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")


def settings(root: Path) -> dict[str, Any]:
    """`[tool.headroom.compile]`."""
    table = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["headroom"]["compile"]
    assert isinstance(table, dict)
    return table


def compile_modules(root: Path, into: Path) -> dict[Path, str]:
    """The extension modules, and where in the wheel each belongs.

    Args:
        into: an empty directory, for the copy of the sources and what is made of them.

    Raises:
        RuntimeError: a module cannot be compiled; mypyc or the C compiler has said why on stderr.
    """
    shutil.copytree(root / "epp", into / "epp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", into)
    # In a process of its own: mypyc reads the sources of the current directory, and exits at an error.
    command = [sys.executable, str(PROTO_DIR / "build_hook.py"), "--compile-here"]
    if subprocess.run(command, cwd=into, stdout=sys.stderr, check=False).returncode:
        raise RuntimeError("mypyc or the C compiler failed")
    made = into / "made"
    return {file: str(file.relative_to(made)) for file in sorted(made.rglob("*")) if file.is_file()}


def compile_here() -> None:
    """Compile the sources below the current directory into `made`."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    modules = settings(Path.cwd())["modules"]
    files = [f"{module.replace('.', '/')}.py" for module in modules]
    missing = [file for file in files if not Path(file).is_file()]
    if missing:
        sys.exit(f"pyproject.toml, tool.headroom.compile.modules: no such file: {', '.join(missing)}")
    extensions = mypycify(
        ["--config-file", "pyproject.toml", *files], opt_level="2", debug_level="0", group_name="headroom"
    )
    command = Distribution({"name": "headroom-epp", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = "made", "temporary"  # type: ignore[attr-defined]
    command.ensure_finalized()
    command.run()


class Hook(BuildHookInterface[Any]):
    _work: tempfile.TemporaryDirectory[str] | None = None  # if the build fails, it is gone with the process

    def dependencies(self) -> list[str]:
        """Compiling reads the types of whatever the modules import."""
        if not self._compiles:
            return []
        return [*settings(Path(self.root))["requires"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        generate(root)
        if self._compiles and version == "standard":
            self._work = tempfile.TemporaryDirectory(prefix="headroom-compile-")
            made = compile_modules(root, Path(self._work.name))
            build_data["force_include"].update({str(file): place for file, place in made.items()})
            build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._work is not None:
            self._work.cleanup()

    @property
    def _compiles(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(COMPILE, "") not in ("", "0")


if __name__ == "__main__":
    if sys.argv[1:] == ["--compile-here"]:
        compile_here()
    else:
        generate(PROTO_DIR.parent)
        sys.stdout.write("epp/wire/*_pb2.py written\n")
