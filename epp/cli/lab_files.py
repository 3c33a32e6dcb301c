"""The files of `epp lab`: where results go, which is settled before the work begins and not after minutes of it.

A result must have a place where it can be written, and the place must be its own: neither that of another result, nor a
file that is read, nor where the printed tables go. By whatever paths they are named: files are told apart by what they
are, and those that are not there yet by folder and name.
"""

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from epp.problem import Problem

_RESULTS = ("json", "report", "out", "measurements")
_READ = ("trace", "workload", "csv", "like", "config", "policies")


def new_file(text: str) -> Path:
    """A file to write once the work is done; that it cannot be is said before."""
    path = Path(text)
    try:
        why = "it is a directory" if text.endswith(os.sep) else _why_not(path)
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise Problem(f"{path}: cannot be written: {why}")
    return path


def _why_not(path: Path) -> str | None:
    """`None`: it can be written. Raises OSError."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            return "it is a directory"
        may = os.access(path, os.W_OK)
    except (FileNotFoundError, NotADirectoryError):
        folder = _made_at(path).parent
        if not folder.is_dir():
            return f"there is no directory {folder}"
        may = os.access(folder, os.W_OK | os.X_OK)
    return None if may else "permission denied"


def _made_at(path: Path) -> Path:
    """Where a file comes to be that is not there yet: a link may lead elsewhere."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def report_file(text: str) -> Path:
    from epp.lab.html_report import require_matplotlib

    require_matplotlib()
    return new_file(text)


_File = tuple[int | str, ...] | None
"""Equal for two paths where one file is, or would be made: device and inode of it, or of its folder, and its name.
`None`: a pipe or a device, where nothing is replaced, or a place where no file can be."""


def keep_apart(arguments: argparse.Namespace) -> None:
    """Raises `Problem` where a result would replace another one, what is read, or what is printed."""
    results = [(f"--{name}", path) for name in _RESULTS if (path := getattr(arguments, name, None)) is not None]
    taken: list[tuple[str, _File]] = [(f"{flag} {path}", _file_at(path)) for flag, path in _files_read(arguments)]
    taken += [("standard output", _file_behind(sys.stdout)), ("standard error", _file_behind(sys.stderr))]
    for flag, path in results:
        file, named = _file_at(path), f"{flag} {path}"
        for other, its_file in taken:
            if file is not None and file == its_file:
                raise Problem(
                    f"{other} and {named} are the same file, and what one has there would be lost: "
                    f"let {flag} name another"
                )
        taken.append((named, file))


def _files_read(arguments: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """With the flags that name them."""
    from epp.lab.pools import shape_files

    for name in _READ:
        value = getattr(arguments, name, None)
        for given in value if isinstance(value, (list, tuple)) else [value]:
            if given is not None and (name == "csv" or Path(given).suffix):  # names that are ours have no suffix
                yield f"--{name}", Path(given)
    for path in shape_files(getattr(arguments, "pool", None) or ""):
        yield "--pool", path


def _file_at(path: Path) -> _File:
    try:
        return _identity(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        made_at = _made_at(path)
    except OSError:
        return None
    try:
        folder = made_at.parent.stat()
    except OSError:
        return None
    return folder.st_dev, folder.st_ino, made_at.name


def _file_behind(stream: Any) -> _File:
    try:
        return _identity(os.fstat(stream.fileno()))
    except (AttributeError, OSError, ValueError):
        return None  # closed, or no file behind it


def _identity(status: os.stat_result) -> _File:
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def write_json(path: Path, value: Any) -> None:
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    write(path, orjson.dumps(value, option=options))


def write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise Problem(f"{path}: cannot be written: {error.strerror}") from error
