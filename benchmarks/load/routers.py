"""Other routers, from PyPI: installed when first used, started before given servers, and ended.

Each gets a virtual environment of its own outside the tree, so that their dependencies meet neither ours nor each
other's. They run with their cache-aware policy and log warnings only; anything else is their default.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.measuring import family
from benchmarks.load.programs import LoadError

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headroom-peers"
POLICY = "cache_aware"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
_PROBE = b'{"model": "bench", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}'


@dataclass(frozen=True, slots=True)
class Router:
    """
    Attributes:
        name: of its distribution.
        module: how its environment's `python` starts it.
        quiet: its name of the log level for warnings.
    """

    name: str
    module: Sequence[str]
    quiet: str = "warn"


ROUTERS = (
    Router("sglang-router", ("-m", "sglang_router.launch_router")),
    Router("smg", ("-m", "smg", "launch")),
    Router("vllm-router", ("-m", "vllm_router.launch_router"), quiet="warning"),
)


def installed(router: Router, progress: Callable[[str], None]) -> Path:
    """The `python` of its environment, which is made if there is none. Raises `LoadError`."""
    folder = CACHE / router.name
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        progress(f"installing {router.name} into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", router.name]
        pip = subprocess.run(command, capture_output=True, text=True)
        if pip.returncode:
            raise LoadError(f"pip cannot install it: {pip.stderr.strip()[-500:]}")
        done.touch()
    return python


def version_of(router: Router, python: Path) -> str:
    script = f"from importlib.metadata import version; print(version({router.name!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def running(
    router: Router, python: Path, servers: Sequence[str], policy: str = POLICY
) -> Iterator[tuple[int, list[int]]]:
    """Its port and its processes, once it answers requests. Raises `LoadError` if it does not in time.

    Args:
        servers: `host:port` of each. The model that they know as `bench` is asked.
        policy: by the router's own name.
    """
    port, metrics_port = free_ports()
    command = [python, *router.module, "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics_port]
    command += ["--policy", policy, "--log-level", router.quiet]
    command += ["--worker-urls", *(f"http://{address}" for address in servers)]
    with tempfile.NamedTemporaryFile(prefix=f"{router.name}-", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_it_answers(process, port, Path(log.name))
            yield int(port), family(process.pid)
        finally:
            _end(process)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: str, log: Path) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", _PROBE, headers)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LoadError(f"it ended with {process.returncode}: {log.read_text(errors='replace')[-500:]}")
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:  # not yet, or not yet with a server to send it to
            time.sleep(0.2)
    raise LoadError(f"it answered nothing within {START_TIMEOUT_S:g} s: {log.read_text(errors='replace')[-500:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)  # the session that was made for it
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue


def free_ports() -> tuple[str, str]:
    """Two that nobody uses now."""
    with socket.socket() as one, socket.socket() as another:
        one.bind(("127.0.0.1", 0))
        another.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1]), str(another.getsockname()[1])
