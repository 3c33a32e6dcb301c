"""The command line: what it teaches, and that every mistake is one clear line, exit code 2 and no traceback."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epp import __version__
from epp.cli import main
from epp.compiled import build_in_words
from epp.ledger import Ledger
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.server.configuration import build_config, text_of
from epp.server.files import keep_files_apart
from epp.server.options import ServeOptions
from epp.server.tls import self_signed_now

pytestmark = pytest.mark.timeout(30)

ENDPOINTS = ["--endpoints", "127.0.0.1:1"]
FREE_PORTS = ["--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
SERVE = ["serve", *ENDPOINTS, *FREE_PORTS]
KUBE = ["serve", *FREE_PORTS]
PREDICTOR = ["predictor", "serve"]


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """`serve` sets up logging for its process, which here is ours."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, lines: int = 1) -> str:
    """What is said on stderr of arguments that cannot work."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    said = [line for line in captured.err.splitlines() if not line.startswith('{"time"')]  # the log is there too
    assert len(said) == lines, captured.err
    assert "Traceback" not in captured.err
    return "\n".join(said)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed by arguments that work."""
    try:
        code = main(arguments)
    except SystemExit as exit_:  # how argparse ends --help and --version
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


# --- what it teaches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["serve", "check", "demo", "EndpointPickerConfig", "epp COMMAND --help"]),
        (
            ["serve"],
            ["--endpoints", "--config-file", "--grpc-port", "9002", "9003", "9090", "--cert-path", "--drain-timeout"],
        ),
        (["serve"], ["--profile", "llm-d-default", "predicted-latency", "headroom"]),
        (["check"], ["--config-file", "--config-text", "--profile", "Exit code"]),
        (["demo"], ["--serve", "--servers", "--requests"]),
    ],
)
def test_help_names_what_one_needs(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    text = output(capsys, *arguments, "--help")
    assert [word for word in words if word not in text] == []
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "--version") == f"headroom-epp {__version__} ({build_in_words()})\n"


def test_check_prints_the_pipeline_that_a_configuration_makes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    built_in = output(capsys, "check")
    assert all(name in built_in for name in ("queue-scorer", "prefix-cache-scorer", "max-score-picker", "default"))
    config = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [{type: random-picker}]}"
    file = tmp_path / "c.yaml"
    file.write_text(config)
    from_file = output(capsys, "check", "--config-file", str(file))
    assert "random-picker" in from_file
    assert "queue-scorer" not in from_file
    assert output(capsys, "check", "--config-text", config).splitlines()[1:] == from_file.splitlines()[1:]


@pytest.mark.parametrize(
    ("profile", "decides"),
    [
        ("llm-d-default", "queue-scorer"),
        ("predicted-latency", "slo-headroom-tier-filter"),
        ("headroom", "latency-cost-scorer"),
    ],
)
def test_check_prints_the_configurations_that_come_with_the_picker(
    capsys: pytest.CaptureFixture[str], profile: str, decides: str
) -> None:
    said = output(capsys, "check", "--profile", profile)
    assert f"built-in configuration {profile}" in said
    assert decides in said
    assert (said == output(capsys, "check")) == (profile == "llm-d-default")


@pytest.mark.parametrize("profile", ["llm-d-default", "predicted-latency", "headroom"])
def test_a_configuration_that_is_printed_makes_the_same_pipeline_from_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, profile: str
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(output(capsys, "check", "--profile", profile, "--print"))
    of_mine = output(capsys, "check", "--config-file", str(mine)).splitlines()
    assert of_mine[1:] == output(capsys, "check", "--profile", profile).splitlines()[1:]


def test_check_reads_the_endpoints_file_as_serve_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, endpoints = tmp_path / "c.yaml", tmp_path / "endpoints.yaml"
    file.write_text(
        "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, dataLayer: {discovery: {pluginRef: files}},"
        f"plugins: [{{type: file-discovery, name: files, parameters: {{path: {endpoints}}}}}]}}"
    )
    for content, says in (
        (None, "endpoints.yaml: No such file or directory; give the path of a readable file"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: http}]", "endpoints.yaml:1: endpoints[0].port: "),
    ):
        if content is not None:
            endpoints.write_text(content)
        assert main(["check", "--config-file", str(file)]) == 2
        said = capsys.readouterr()
        assert "max-score-picker" in said.out  # the pipeline all the same
        assert says in said.err
        assert complaint(capsys, *SERVE[:1], "--config-file", str(file)) == said.err.strip()
    endpoints.write_text("endpoints: [{name: a, address: 10.0.0.1, port: 8000}]")
    assert output(capsys, "check", "--config-file", str(file)).endswith("\nendpoints: 1\n")


def engine_config(engine: str) -> str:
    extractor = f"{{type: core-metrics-extractor, parameters: {engine}}}"
    return f"{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [{extractor}]}}"


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ("{defaultEngine: unheard-of}", "'unheard-of'"),
        ("{engineConfigs: [{name: mine, queuedRequestsSpec: no metric}]}", "'no metric'"),
    ],
)
def test_what_check_accepts_would_serve(capsys: pytest.CaptureFixture[str], engine: str, word: str) -> None:
    checked = complaint(capsys, "check", "--config-text", engine_config(engine))
    assert "core-metrics-extractor" in checked
    assert word in checked
    assert complaint(capsys, *SERVE, "--config-text", engine_config(engine)) == checked


def test_check_tells_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    engine = "{name: mine, customMetrics: [{attributeKey: heat, metricSpec: my_heat}]}"
    said = output(capsys, "check", "--config-text", engine_config(f"{{engineConfigs: [{engine}]}}"))
    assert "plugins[0].parameters.engineConfigs[0].customMetrics: Ignored" in said


# --- flags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND"]),
        (["sevre"], ["sevre", "serve"]),
        ([*SERVE, "--no-such-flag"], ["--no-such-flag", "epp"]),
        ([*SERVE, "--grpc-p", "1"], ["--grpc-p"]),  # never a guess
        ([*SERVE, "--grpc-port", "70000"], ["--grpc-port", "70000", "65535"]),
        ([*SERVE, "--grpc-port", "x"], ["--grpc-port", "'x'"]),
        ([*SERVE, "--drain-timeout", "soon"], ["--drain-timeout", "200ms"]),
        ([*SERVE, "--drain-timeout=-1s"], ["--drain-timeout", "negative"]),
        ([*SERVE, "--max-request-body", "much"], ["--max-request-body"]),
        ([*SERVE, "--secure-serving=maybe"], ["--secure-serving", "'maybe'"]),
        ([*SERVE, "--objective", "batch"], ["--objective", "NAME=PRIORITY"]),
        ([*SERVE, "--objective", "=1"], ["--objective", "NAME=PRIORITY"]),
        ([*SERVE, "--seed", "x"], ["--seed"]),
        ([*SERVE, "--config-file", "a", "--config-text", "b"], ["--config-text", "--config-file"]),
        (["check", "--config-file", "a", "--config-text", "b"], ["--config-text", "--config-file"]),
        ([*SERVE, "--endpoint-selector", "app=vllm"], ["--endpoint-selector", "--endpoints"]),
        ([*SERVE, "--endpoint-target-ports", "8000"], ["--endpoint-target-ports", "--endpoint-selector"]),
        ([*SERVE, "--ha-enable-leader-election"], ["--ha-enable-leader-election", "--pool-name"]),
        ([*KUBE, "--endpoint-selector", "app in vllm"], ["--endpoint-selector", "app in vllm"]),
        ([*KUBE, "--pool-name", "p", "--endpoint-selector", "app=vllm"], ["--endpoint-selector", "--pool-name"]),
        ([*KUBE, "--pool-name", "p", "--pool-group", "apps"], ["--pool-group", "inference.networking.k8s.io"]),
        (
            [*KUBE, "--pool-name", "p", "--ha-enable-leader-election", "--ha-lease-duration", "1500ms"],
            ["whole seconds"],
        ),
        ([*SERVE, "--tracing"], ["--tracing", "--tracing=false"]),
        ([*SERVE, "--tracing=true"], ["--tracing", "--tracing=false"]),
        ([*SERVE, "--metrics-cert-dir", "x"], ["--metrics-cert-dir"]),
        (["demo", "--servers", "many"], ["--servers"]),
        (["demo", "--servers", "0"], ["--servers"]),
        (["demo", "--requests", "-1"], ["--requests"]),
        (["demo", "--profile", "fastest"], ["--profile", "predicted-latency", "headroom"]),
        (["demo", "--profile", "headroom", "--config-file", "a"], ["--config-file", "--profile"]),
    ],
)
def test_a_bad_flag_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    said = complaint(capsys, *arguments)
    assert [word for word in words if word not in said] == []


# --- the pool -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "words"),
    [
        ("", ["no endpoints"]),
        ("10.0.0.1", ["10.0.0.1", "port"]),
        ("10.0.0.1:8000,", ["entry 2", "comma"]),
        ("http://10.0.0.1:8000", ["URL", "host:port"]),
        ("10.0.0.1:99999", ["entry 1"]),
        ("10.0.0.1:8000,10.0.0.1:8000", ["twice"]),
    ],
)
def test_bad_endpoints_are_one_line(capsys: pytest.CaptureFixture[str], endpoints: str, words: list[str]) -> None:
    said = complaint(capsys, "serve", *FREE_PORTS, "--endpoints", endpoints)
    assert said.startswith("--endpoints")
    assert [word for word in words if word not in said] == []


def test_a_pool_must_come_from_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "serve", *FREE_PORTS)
    assert "--endpoints" in said
    assert "file-discovery" in said


def discovering(tmp_path: Path, endpoints: str | None) -> list[str]:
    """Flags for a pool that a file names."""
    file = tmp_path / "endpoints.yaml"
    if endpoints is not None:
        file.write_text(endpoints)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: file-discovery
  parameters: {{path: {file}}}
dataLayer:
  discovery: {{pluginRef: file-discovery}}
"""
    )
    return ["serve", *FREE_PORTS, "--config-file", str(config)]


@pytest.mark.parametrize("endpoints", [None, "endpoints: [{name: a", "endpoints: [{name: a, address: x, port: 0}]"])
def test_a_bad_endpoints_file_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, endpoints: str | None
) -> None:
    assert "endpoints.yaml" in complaint(capsys, *discovering(tmp_path, endpoints))


def test_two_pools_are_one_too_many(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = complaint(capsys, *discovering(tmp_path, "endpoints: []"), *ENDPOINTS)
    assert "--endpoints" in said
    assert "remove one" in said


# --- the configuration --------------------------------------------------------------------------------------------

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@pytest.mark.parametrize("command", [["check"], SERVE])
@pytest.mark.parametrize(
    ("text", "words", "lines"),
    [
        ("plugins: [", ["c.yaml"], 1),
        (HEAD + "plugins: [{type: qeue-scorer}]", ["c.yaml", "qeue-scorer", "queue-scorer"], 1),
        (HEAD + "pluginz: []", ["c.yaml", "pluginz", "plugins"], 1),
        (HEAD + "plugins:\n- type: nope-a\n- type: nope-b\n", ["nope-a", "nope-b", ":4", ":5"], 2),
    ],
)
def test_a_bad_configuration_is_a_line_per_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], text: str, words: list[str], lines: int
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    said = complaint(capsys, *command, "--config-file", str(file), lines=lines)
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize("command", [["check"], SERVE])
@pytest.mark.parametrize("kind", ["missing", "a directory", "not text"])
def test_a_configuration_that_cannot_be_read_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], kind: str
) -> None:
    file = tmp_path / "c.yaml"
    if kind == "a directory":
        file.mkdir()
    elif kind == "not text":
        file.write_bytes(b"\xff\xfe\x00")
    said = complaint(capsys, *command, "--config-file", str(file))
    assert said.startswith(str(file))
    assert "--config-file" in said


# --- certificate, ports, socket, files ----------------------------------------------------------------------------


@pytest.mark.parametrize("reload", ["false", "true"])
@pytest.mark.parametrize("kind", ["missing directory", "empty directory", "no certificate", "other key"])
def test_a_certificate_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, reload: str
) -> None:
    folder = tmp_path / "tls"
    if kind != "missing directory":
        folder.mkdir()
    if kind in ("no certificate", "other key"):
        pair, other = self_signed_now(), self_signed_now()
        (folder / "tls.crt").write_bytes(b"nonsense" if kind == "no certificate" else other.certificate)
        (folder / "tls.key").write_bytes(pair.key)
    said = complaint(capsys, *SERVE, "--cert-path", str(folder), f"--enable-cert-reload={reload}")
    assert str(folder) in said


@pytest.mark.parametrize("flag", ["--grpc-port", "--grpc-health-port", "--metrics-port"])
def test_a_port_in_use_is_one_line_that_names_port_and_flag(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = complaint(capsys, *SERVE, flag, port)
    assert port in said
    assert f"({flag})" in said


def test_an_address_that_is_not_ours_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        said = complaint(capsys, *SERVE, "--host", host)
        assert host in said
        assert "Unknown error" not in said


def test_what_is_in_the_way_of_the_socket_is_one_line_and_stays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "epp.sock"
    file.write_text("precious")
    assert "--grpc-socket" in complaint(capsys, *SERVE, "--grpc-socket", str(file))
    assert file.read_text() == "precious"
    assert "--grpc-socket" in complaint(capsys, *SERVE, "--grpc-socket", str(tmp_path / "nowhere" / "epp.sock"))


@pytest.mark.parametrize("flag", ["--ports-file", "--model-file"])
@pytest.mark.parametrize("command", [SERVE, PREDICTOR], ids=["picker", "predictor"])
def test_a_file_in_a_folder_that_is_not_there_is_said_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str], flag: str
) -> None:
    file = tmp_path / "nowhere" / "file"
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is looked at before it
    said = complaint(capsys, *command, *not_ours, flag, str(file))
    assert said == f"{flag} {file}: cannot be written: there is no directory {file.parent}; make it, or name another"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--model-file x", "--ports-file ./x"),
        ("--model-file link/x.jsonl", "--record-trace x.jsonl"),
        ("--record-trace x.jsonl", "--ports-file x.old.jsonl"),
        ("--grpc-socket x", "--ports-file x"),
        ("--grpc-socket left", "--model-file left"),
        ("--config-file c.yaml", "--ports-file link/c.yaml"),
        ("--config-file c.yaml", "--model-file endpoints.yaml"),
        ("--cert-path .", "--model-file tls.key"),
        ("--pool-name p", "--ports-file .kube/config"),
    ],
)
def test_no_file_is_written_over_another_or_over_what_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pool = SERVE if "--config-file" not in one else discovering(tmp_path, "endpoints: []")
    pool = KUBE if "--pool-name" in one else pool
    Path("link").symlink_to(".")
    pair = self_signed_now()
    Path("tls.crt").write_bytes(pair.certificate)
    Path("tls.key").write_bytes(pair.key)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind("left")
    Path(".kube").mkdir()
    Path(".kube/config").touch()
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is looked at before it
    said = complaint(capsys, *pool, *not_ours, *one.split(), *other.split())
    assert f"{other} are the same file" in said
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("flag", "there"),
    [
        ("--ports-file", "pipe"),
        ("--ports-file", "directory"),
        ("--model-file", "link to a pipe"),
        ("--model-file", "socket"),
        ("--record-trace", "pipe"),
    ],
)
def test_what_is_no_file_is_not_replaced_by_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str, there: str
) -> None:
    """A device is told apart as a pipe is: `--ports-file /dev/null` would leave the machine without."""
    place = tmp_path / "x.jsonl"
    match there:
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(place))
        case "directory":
            place.mkdir()
        case _:
            os.mkfifo(tmp_path / "pipe")
            place.symlink_to("pipe")
    before = place.lstat()
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is looked at before it
    assert f"{flag} {place}: " in complaint(capsys, *SERVE, *not_ours, flag, str(place))
    now = place.lstat()
    assert (now.st_ino, now.st_mode) == (before.st_ino, before.st_mode)
    assert {path.name for path in tmp_path.iterdir()} <= {"x.jsonl", "pipe"}


def test_a_name_that_no_file_can_have_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = discovering(tmp_path, None)
    config = tmp_path / "c.yaml"
    config.write_text(config.read_text().replace(str(tmp_path / "endpoints.yaml"), r'"a\0b"'))
    assert r"'a\x00b': no file can have this name" in complaint(capsys, *flags)


def test_traces_of_workers_are_not_written_over_either(tmp_path: Path) -> None:
    trace, config = str(tmp_path / "x.jsonl"), build_config(text_of(), Services(Ledger()))
    keep_files_apart(ServeOptions(record_trace=trace, workers=2, ports_file=trace), config)  # nobody records there
    for name in ("x.1.jsonl", "x.1.old.jsonl"):
        with pytest.raises(Problem, match=f"--record-trace .*{name} and --ports-file .*{name} are the same file"):
            keep_files_apart(ServeOptions(record_trace=trace, workers=2, ports_file=str(tmp_path / name)), config)


# --- the process --------------------------------------------------------------------------------------------------


def test_what_cannot_work_as_meant_is_said_in_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A host name, which Envoy will not follow; a model file, without a plugin that fills it."""
    not_ours = ["--host", "192.0.2.1"]  # ends the start, right after all that is said before serving
    arguments = ["serve", *FREE_PORTS, "--endpoints", "localhost:1", "--model-file", str(tmp_path / "m"), *not_ours]
    assert main(arguments) == 2
    log = capsys.readouterr().err
    assert "localhost is a host name" in log
    assert "--model-file has no effect" in log


@pytest.mark.parametrize(
    "command", ["check", "serve", "lab faults", "lab list", "predictor serve", "model show f", "model import a b"]
)
def test_an_unknown_flag_points_to_the_command_s_own_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    name = " ".join(["epp", *(word for word in command.split() if len(word) > 1)])
    assert complaint(capsys, *command.split(), "--confg-file=x") == (
        f"{name}: unknown: --confg-file=x (see {name} --help)"
    )


@pytest.mark.parametrize(
    ("arguments", "unbuffered", "codes"),
    [
        (["lab", "list"], "", {141}),
        (["lab", "list"], "1", {141}),
        (["serve", "--help"], "", {0, 141}),  # argparse does not mind
    ],
    ids=["at-the-end", "at-once", "help"],
)
def test_with_nobody_left_to_read_it_ends_in_silence(arguments: list[str], unbuffered: str, codes: set[int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "epp.cli", *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, timeout=25)
    finally:
        os.close(writing)
    assert ended.returncode in codes
    assert ended.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here, which is a full disk")
@pytest.mark.parametrize("arguments", [["lab", "list"], ["lab", "--help"]], ids=["listing", "help"])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "epp.cli", *arguments]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=25)
    assert (ended.returncode, ended.stderr) == (2, "standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the latter of a C locale
def test_what_the_encoding_has_no_letter_for_is_printed_as_its_code(errors: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": f"ascii:{errors}"}
    command = [sys.executable, "-m", "epp.cli", "lab", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=25)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\xb7" in ended.stdout


def test_a_pipe_that_breaks_elsewhere_is_no_silent_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise BrokenPipeError("of a connection")

    monkeypatch.setattr("epp.cli._parser", breaks)
    with pytest.raises(BrokenPipeError, match="of a connection"):
        main(["lab", "list"])


def test_as_a_process_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """The whole way once: flags of llm-d that change nothing here, ports told, Ctrl-C, exit code 0, no traceback."""
    ports = tmp_path / "ports.json"
    command = [sys.executable, "-m", "epp.cli", *SERVE, "--secure-serving=false", "--ports-file", str(ports)]
    command += ["--grpc-socket", str(tmp_path / "epp.sock"), "--tracing=false", "--zap-devel", "--health-checking=true"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as epp:
        deadline_s = time.monotonic() + 30
        while not ports.exists() and epp.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        epp.send_signal(signal.SIGINT)
        _, said = epp.communicate(timeout=30)
    assert ports.exists(), said
    assert epp.returncode == 0
    assert "Traceback" not in said
