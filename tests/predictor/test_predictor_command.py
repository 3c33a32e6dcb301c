"""`epp predictor serve`: its flags, its mistakes, and its process from start to end."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from epp.cli import main

pytestmark = pytest.mark.timeout(60)

SERVE = ("predictor", "serve", "--host", "127.0.0.1")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """`serve` sets up logging for its process, which here is ours."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--training-port", "off", "--prediction-port", "off"), "nothing to serve"),
        (("--training-port", "70000"), "70000"),
        (("--training-port", "on"), "'on' is not a port"),
        (("--quantile", "1"), "not a number between 0 and 1"),
        (("--quantile", "nan"), "not a number between 0 and 1"),
        (("--objective", "median"), "median"),
        (("--training-port", "off", "--training-server-url", "trainer"), "trainer is not http://HOST:PORT"),
        (("--training-port", "off", "--training-server-url", "http://a,http://b"), "there is one training server"),
        (("--training-server-url", "http://a"), "say --training-port off"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SERVE, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert why in err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LATENCY_OBJECTIVE_TYPE", "median"),
        ("LATENCY_QUANTILE_ALPHA", "90"),
        ("TRAINING_SERVER_URL", "trainer:8000"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert main([*SERVE, "--training-port", "off"]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: ")


@pytest.mark.parametrize("command", [("predictor",), ("predictor", "serve"), ("model",), ("model", "show")])
def test_help_teaches(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert main([*SERVE, "--training-port", str(port), "--prediction-port", "0"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith('{"time"')]
    assert said == [f"cannot listen on 127.0.0.1 port {port} (--training-port): another process listens there"]


def test_ports_are_not_written_over_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("x")
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is looked at before it
    assert main([*SERVE, *not_ours, "--model-file", "link", "--ports-file", "x"]) == 2
    assert "--model-file link and --ports-file x are the same file" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--model-file", "--ports-file"])
def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is looked at before it
    assert main([*SERVE, *not_ours, flag, str(pipe)]) == 2
    assert f"{flag} {pipe}: that is a device, a pipe or a socket" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_it_serves_both_ports_until_it_is_told_to_stop_and_keeps_what_it_learned(tmp_path: Path) -> None:
    ports_file, model_file = tmp_path / "ports.json", tmp_path / "latency.model"
    command = [sys.executable, "-m", "epp.cli", *SERVE, "--training-port", "0", "--prediction-port", "0"]
    command += ["--ports-file", str(ports_file), "--model-file", str(model_file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINING_")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not ports_file.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for port in json.loads(ports_file.read_text()).values():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as response:
                assert json.load(response) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()
    assert main(["model", "show", str(model_file)]) == 0
