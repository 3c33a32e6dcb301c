"""The configuration is read once, at the start: whatever the file holds later, all of a picker has the same."""

import json
import os
import threading
from pathlib import Path

import pytest

from epp.sim.picker_process import PickerProcess

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: random-picker
  name: by-chance
"""


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_pipe_which_can_be_read_only_once_will_do(tmp_path: Path, workers: int) -> None:
    """As in `--config-file <(make-config)`."""
    if workers > 1 and not hasattr(os, "pidfd_open"):
        pytest.skip("needs Linux: --workers is refused elsewhere")
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(CONFIG,), daemon=True)
    writer.start()
    flags = ["--endpoints", "127.0.0.1:1", "--secure-serving=false", "--workers", str(workers)]
    async with PickerProcess(tmp_path, [*flags, "--config-file", str(pipe)]) as picker:
        assert (await picker.state())["configuration"] == str(pipe)
        plugins = json.loads(await picker.ask("/debug/plugins/state"))["plugins"]
    assert "by-chance" in plugins
    assert workers == 1 or list(plugins["by-chance"]["workers"]) == ["0", "1"]
    writer.join(timeout=10)
    assert not writer.is_alive()
