"""The files of `epp lab`: which of its flags name results, and which what is read."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epp import files

_RESULTS = ("json", "report", "out", "measurements")
_READ = ("trace", "workload", "csv", "like", "config", "policies")


def report_file(text: str) -> Path:
    from epp.lab.html_report import require_matplotlib

    require_matplotlib()
    return files.new_file(text)


def keep_apart(arguments: argparse.Namespace) -> None:
    """Raises `Problem` where a result would replace another one, what is read, or what is printed."""
    files.keep_apart(((f"--{name}", getattr(arguments, name, None)) for name in _RESULTS), _files_read(arguments))


def _files_read(arguments: argparse.Namespace) -> Iterator[files.Named]:
    from epp.lab.pools import shape_files

    for name in _READ:
        value = getattr(arguments, name, None)
        for given in value if isinstance(value, (list, tuple)) else [value]:
            if given is not None and (name == "csv" or Path(given).suffix):  # names that are ours have no suffix
                yield f"--{name}", given
    for path in shape_files(getattr(arguments, "pool", None) or ""):
        yield "--pool", path


def write_json(path: Path, value: Any) -> None:
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    files.write(path, orjson.dumps(value, option=options))
