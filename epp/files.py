"""Where results go, which is settled before the work begins and not after minutes of it.

A file that is written must have a place where it can be, and the place must be its own: neither that of another one,
nor a file that is read, nor where output is printed. By whatever paths they are named: files are told apart by what
they are, and those that are not there yet by folder and name.

Some files are renamed into their place, so that nobody reads half of one. Whatever was there is gone then, also if it
was a device; and it is the folder that must let itself be written.
"""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from epp.problem import Problem

READABLE: Final = 0o644
"""The mode of a file that other users may read, as far as the umask lets them."""

PRIVATE: Final = 0o600

_MADE = 0o666  # as any file that is made: the umask says what is left of it
_DRAFT_CHARACTERS = 50  # of a name, at most four bytes each: a longer name than the file's may be too long

Named = tuple[str, str | Path | None]
"""What the user calls a file by, as a rule a flag, and its path; `None`: there is none."""

_File = tuple[int | str, ...] | None
"""Equal for two paths where one file is, or would be made: device and inode of it, or of its folder, and its name.
`None`: a pipe or a device, where nothing is replaced, or a place where no file can be."""


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


def keep_apart(written: Iterable[Named], read: Iterable[Named] = ()) -> None:
    """Raises `Problem` where what is written would replace something: what else is written, is read, or is printed."""
    taken = [(f"{name} {path}", _file_at(Path(path))) for name, path in read if path is not None]
    taken += [("standard output", _file_behind(sys.stdout)), ("standard error", _file_behind(sys.stderr))]
    for name, path in written:
        if path is None:
            continue
        file, named = _file_at(Path(path)), f"{name} {path}"
        for other, its_file in taken:
            if file is not None and file == its_file:
                raise Problem(
                    f"{other} and {named} are the same file, and what one has there would be lost: "
                    f"let {name} name another"
                )
        taken.append((named, file))


def require_replaceable(written: Iterable[Named]) -> None:
    """Raises `Problem` where a file cannot be renamed into its place: where there is a device, a pipe or a directory,
    and in a folder that is not there or lets nobody write."""
    for name, path in written:
        if path is None:
            continue
        folder = Path(path).parent
        if not folder.is_dir():
            raise Problem(f"{name} {path}: cannot be written: there is no directory {folder}; make it, or name another")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Problem(
                f"{name} {path}: cannot be written: the directory {folder} may not be written to, and the file is "
                "replaced in it; give the right to, or name another"
            )
        try:
            mode = Path(path).stat().st_mode
        except OSError:
            continue  # it is not there, or it will be said when it is written
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
            raise Problem(f"{name} {path}: that is {what}, which a file would replace: let {name} name another place")


def _file_at(path: Path) -> _File:
    try:
        return _identity(path.stat())
    except (FileNotFoundError, NotADirectoryError):
        made_at = _made_at(path)
    except (OSError, ValueError):  # a name may come from a file, and hold what no name can
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
    """Of a socket, too: it is replaced by one of the next process."""
    kept = stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)
    return (status.st_dev, status.st_ino) if kept else None


def write(path: Path, content: bytes) -> None:
    """The file is replaced whole, or is what it was; it keeps its owner and mode, and a link leads to it as before.
    Devices and pipes are written to, and so is a file that cannot be replaced where it is. Raises `Problem`."""
    try:
        old, place = _old(path), Path(os.path.realpath(path))
        if not _may_be_replaced(place, old) or not _replaced(place, content, old):
            path.write_bytes(content)
    except OSError as error:
        raise Problem(f"{path}: cannot be written: {error.strerror}") from error


def _may_be_replaced(place: Path, old: os.stat_result | None) -> bool:
    """What may not be written to may not be replaced either."""
    if old is not None:
        found = _old(place)  # behind a link in /dev/fd there may be a name, but no file
        if found is None or not os.path.samestat(found, old) or not stat.S_ISREG(old.st_mode):
            return False
        if not os.access(place, os.W_OK):
            return False
    return os.access(place.parent, os.W_OK | os.X_OK)


def _old(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replaced(place: Path, content: bytes, old: os.stat_result | None) -> bool:
    """False where a file may be written to but not renamed over, as one that a container mounts alone."""
    try:
        write_atomically(place, content, _MADE, old)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def write_atomically(path: Path, content: bytes, mode: int, like: os.stat_result | None = None) -> None:
    """Replace the file at `path`, or leave the old one as it was. Raises OSError.

    Args:
        mode: of the new file, whatever that of the old one was: `READABLE` or `PRIVATE`.
        like: whose owner, as far as that may be, and mode it has instead.
    """
    draft = path.with_name(f".{path.name[:_DRAFT_CHARACTERS]}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            if like is not None:
                with suppress(OSError):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
