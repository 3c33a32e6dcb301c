import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from epp.files import PRIVATE, READABLE, require_replaceable, write, write_atomically
from epp.problem import Problem


@pytest.mark.parametrize("mode", [READABLE, PRIVATE])
def test_a_file_is_replaced_whole_or_not_at_all_and_has_the_mode_that_was_asked_for(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch(0o640)
    before = os.umask(0o022)
    try:
        write_atomically(path, b"one", mode)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "directory", b"two", mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["directory", "file"]


def test_the_umask_takes_rights_and_never_gives_any(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "file", b"", READABLE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_folder_that_lets_nobody_write_is_said_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs this may be root, who may write anywhere: the system's answer is given for it."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(Problem, match=rf"--model-file {tmp_path}/x: .* directory {tmp_path} .* or name another"):
        require_replaceable([("--model-file", tmp_path / "x")])
    require_replaceable([("--model-file", None), ("--ports-file", tmp_path.parent / "y")])


def test_a_result_that_cannot_be_written_whole_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result"
    write(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(Problem, match=f"{path}: cannot be written: File too large"):
            write(path, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_keeps_its_mode_and_a_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, link, new = tmp_path / "folder" / "result", tmp_path / "link", tmp_path / "new"
    path.touch()
    path.chmod(0o664)
    link.symlink_to("folder/result")
    new.symlink_to("folder/made")
    before = os.umask(0o022)
    try:
        write(link, b"one")
        write(new, b"two")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert new.is_symlink()
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"one", 0o664)
    assert ((tmp_path / "folder" / "made").read_bytes(), stat.S_IMODE(new.stat().st_mode)) == (b"two", 0o644)


def test_a_name_may_be_as_long_as_names_are(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"


def test_devices_pipes_and_descriptors_are_written_to(tmp_path: Path) -> None:
    write(Path("/dev/null"), b"gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    reading, writing = os.pipe()
    try:
        write(Path(f"/dev/fd/{writing}"), b"piped")
        assert os.read(reading, 100) == b"piped"
    finally:
        os.close(reading)
        os.close(writing)
    with (tmp_path / "unlinked").open("w+b") as file:
        (tmp_path / "unlinked").unlink()
        write(Path(f"/dev/fd/{file.fileno()}"), b"kept")
        assert file.read() == b"kept"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_replaced_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mounted"
    path.write_bytes(b"old")

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write(path, b"new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)
    write(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]
