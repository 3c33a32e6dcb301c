"""`epp serve` as a child process on free ports of loopback: started, waited for, asked, and stopped."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

import epp
from epp.problem import Problem

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02


class PickerError(Problem):
    """The picker did not start."""


class PickerProcess:
    """One picker; an async context manager that starts it and stops it.

    Args:
        folder: for its log and the file in which it tells its ports.
        arguments: flags of `epp serve`; the ports are chosen here.

    Attributes:
        log_path: all it said.
        ports: by name: `grpc`, `health`, `metrics`.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], python: str | None = None) -> None:
        """`python`: the interpreter of another installation, whose picker is to run; `None`: ours."""
        self.log_path = folder / "picker.log"
        self.ports: dict[str, int] = {}
        self._ports_file = folder / "ports.json"
        self._arguments = tuple(arguments)
        self._python = python
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Return when it serves. Raises `PickerError`, with the process gone, if it does not."""
        self._ports_file.unlink(missing_ok=True)
        self.ports = {}  # of a life before
        command = [self._python or sys.executable, "-m", "epp.cli", "serve", *self._arguments, "--host", "127.0.0.1"]
        command += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
        command += ["--ports-file", str(self._ports_file)]
        environment = {**os.environ, "PYTHONPATH": str(Path(epp.__file__).parent.parent)}
        if self._python is not None:  # not our sources, nor those of the current directory
            environment |= {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C goes to the owner, who stops it when requests have had their end.
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not self._read_ports():
                    if self._process.returncode is not None:
                        raise PickerError(f"the picker ended with {self._process.returncode}: {self.log()[-2000:]}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.kill()
            raise PickerError(f"the picker did not serve within {START_TIMEOUT_S:g} s: {self.log()[-2000:]}") from None
        except BaseException:
            await self.kill()
            raise

    def _read_ports(self) -> bool:
        with suppress(FileNotFoundError):
            self.ports = json.loads(self._ports_file.read_text())
        return bool(self.ports)

    async def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> int:
        """The exit code. Raises TimeoutError if it does not come in time."""
        if self._process is None:
            raise PickerError("the picker was not started")
        async with asyncio.timeout(STOP_TIMEOUT_S):
            return await self._process.wait()

    async def terminate(self) -> int:
        """SIGTERM, and the exit code it leads to."""
        await self.signal(signal.SIGTERM)
        return await self.wait()

    async def stop(self) -> None:
        """End it soon; by force if it does not go."""
        await self.signal(signal.SIGINT)
        with suppress(TimeoutError, PickerError):
            await self.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PickerError("the picker was not started")
        return self._process.pid

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['metrics']}"

    async def ask(self, path: str) -> bytes:
        """GET from the metrics port; other statuses than 200 raise."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(self.metrics_url + path, raise_for_status=True) as response,
        ):
            return await response.read()

    async def state(self) -> Any:
        """Its `/debug/state`."""
        return json.loads(await self.ask("/debug/state"))
