"""Without the process that forks workers there can be no more of them: the picker ends, and says so."""

import os
import signal
from pathlib import Path

import pytest

from epp.sim.picker_process import PickerProcess

FLAGS = ["--endpoints", "127.0.0.1:1", "--workers", "2", "--secure-serving=false"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux: --workers is refused elsewhere")
async def test_the_end_of_the_fork_server_is_the_end_of_all(tmp_path: Path) -> None:
    async with PickerProcess(tmp_path, FLAGS) as picker:
        worker = (await picker.state())["workers"][0]["pid"]
        os.kill(parent_of(worker), signal.SIGKILL)
        assert await picker.wait() == 2
        assert "the fork server has ended, and all workers with it" in picker.log().splitlines()[-1]
