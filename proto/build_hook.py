"""Writes `epp/wire/*_pb2.py` and their types from the `.proto` files beside this one.

Hatchling runs it for every build, wheel and editable alike; by hand: `python proto/build_hook.py`.
"""

import sys
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_DIR = Path(__file__).resolve().parent
FILES = ("ext_proc.proto", "access_log.proto")


def generate(root: Path) -> None:
    """Run protoc over our files, as if they lay beside the package that they become modules of.

    Raises:
        RuntimeError: protoc found a fault in a file; it has said so on stderr.
    """
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


class ProtoBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))


if __name__ == "__main__":
    generate(PROTO_DIR.parent)
    sys.stdout.write("epp/wire/*_pb2.py written\n")
