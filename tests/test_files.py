import os
import stat
from pathlib import Path

import pytest

from epp.files import PRIVATE, READABLE, require_replaceable, write_atomically
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
