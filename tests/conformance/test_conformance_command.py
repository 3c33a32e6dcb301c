"""`epp conformance`: its table, its exit codes, and what it says of mistakes."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bad_picker import Fault, Picker, immediate, no_fault

from epp.cli import main
from epp.conformance.suite import all_checks


@contextmanager
def serving(fault: Fault = no_fault) -> Iterator[str]:
    """A small picker in a thread of its own, for a command that has its own event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    picker = Picker(fault)
    try:
        yield f"127.0.0.1:{asyncio.run_coroutine_threadsafe(picker.__aenter__(), loop).result(60)}"
    finally:
        asyncio.run_coroutine_threadsafe(picker.__aexit__(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def run(target: str, *flags: str) -> int:
    return main(["conformance", "--target", target, "--plaintext", "--timeout", "30s", *flags])


def test_a_kept_must_is_0_and_a_table(capsys, tmp_path: Path):
    report = tmp_path / "report.json"
    with serving() as target:
        assert run(target, "--only", "header-and-metadata-are-equal", "--json", str(report)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[:3] == ["header-and-metadata-are-equal", "MUST", "passed"]
    assert out.splitlines()[-1] == "MUST: 1 passed, 0 failed, 0 skipped; SHOULD: 0 passed, 0 failed, 0 skipped"
    assert err == "1/1 header-and-metadata-are-equal: passed\n"
    assert json.loads(report.read_text())["conforms"] is True


def test_a_broken_must_is_1_and_says_what_was_seen(capsys, tmp_path: Path):
    report = tmp_path / "report.json"
    with serving(lambda talk, message, replies: [immediate(500)]) as target:
        assert run(target, "--only", "header-and-metadata-are-equal", "--json", str(report)) == 1
    assert "FAILED" in capsys.readouterr().out
    (check,) = json.loads(report.read_text())["checks"]
    assert check["result"] == "failed"


def test_a_broken_should_is_0(capsys):
    def keeps_the_cache(talk, message, replies):
        for reply in replies:
            reply.request_headers.response.clear_route_cache = False
        return replies

    with serving(keeps_the_cache) as target:
        assert run(target, "--only", "route-cache-is-cleared") == 0
    assert "SHOULD  FAILED" in capsys.readouterr().out


def test_what_is_skipped_says_which_flag_it_takes(capsys):
    with serving() as target:
        assert run(target, "--only", "destinations-are-members-of-the-pool") == 0
        assert run(target, "--only", "drain") == 0
    out = capsys.readouterr().out
    assert "skipped  needs --endpoints" in out
    assert "skipped  needs --pid" in out


def test_recordings_are_replayed(capsys, tmp_path: Path):
    file = tmp_path / "talk.jsonl"
    with serving() as target:
        assert run(target, "--only", "bodyless-requests-are-routed", "--record", str(file)) == 0
        assert run(target, "--replay", str(file)) == 0
    with serving(lambda talk, message, replies: [immediate(503)]) as target:
        assert run(target, "--replay", str(file)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "3 conversations, 3 with differences"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--target HOST:PORT is needed"),
        (["--target", "nonsense"], "write a target as HOST:PORT"),
        (["--target", "127.0.0.1:1"], "cannot connect"),
        (["--target", "127.0.0.1:1", "--only", "nothing-like-this"], "no check has such a name"),
        (["--target", "127.0.0.1:1", "--max-request-body", "much"], "--max-request-body: must be a quantity"),
        (["--target", "127.0.0.1:1", "--replay", "/nowhere.jsonl"], "cannot be read"),
        (["--target", "127.0.0.1:1", "--record", "/nowhere/talk.jsonl"], "cannot be written"),
        (["--target", "127.0.0.1:1", "--json", "/nowhere/report.json"], "there is no directory /nowhere"),
        (
            ["--target", "127.0.0.1:1", "--replay", "x", "--record", "y"],
            ": --record would have no effect beside --replay",
        ),
        (["--target", "127.0.0.1:1", "--replay", "x", "--json", "x", "--only", "drain"], ": --only and --json would"),
        (["--list", "--json", "x", "--replay", "y"], ": --replay and --json would have no effect beside --list"),
    ],
)
def test_a_mistake_is_2_and_one_line(arguments, sentence, capsys):
    assert main(["conformance", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_no_result_is_written_over_the_other(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("talk.jsonl").write_text("of before")
    Path("link").symlink_to("talk.jsonl")
    for other in ("./talk.jsonl", "link"):
        assert main(["conformance", "--target", "127.0.0.1:1", "--json", "talk.jsonl", "--record", other]) == 2
        said = capsys.readouterr().err
        assert f"--json talk.jsonl and --record {other.removeprefix('./')} are the same file" in said
    assert Path("talk.jsonl").read_text() == "of before"


def test_every_clause_has_a_name_of_its_own_and_a_sentence():
    checks = all_checks()
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.demand.endswith(".")
