"""Results of `epp lab` have a place of their own, where they can be written: that is settled before anything runs."""

import json
import os
import sys
from pathlib import Path

import pytest

from epp.cli import main

FILES = {
    "t.jsonl": '{"timestamp": 0, "input_length": 300, "output_length": 20, "hash_ids": []}\n',
    "c.yaml": "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n",
    "m.csv": "streams,prompt_tokens,output_tokens,ttft_ms,tpot_ms\n1,100,10,20,10\n",
    "mine.json": json.dumps(
        dict.fromkeys(("base_ms", "prefill_token_us", "sequence_us", "attention_pair_ns", "context_token_ns"), 5.0)
        | {"overhead_ms": 1.0, "kv_tokens": 4096, "max_sequences": 8, "max_batched_tokens": 512}
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where we are, with files to read and other ways to them."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "dir").mkdir()
    (tmp_path / "same").symlink_to(tmp_path)
    (tmp_path / "hard").hardlink_to(tmp_path / "c.yaml")
    (tmp_path / "made").symlink_to("x")
    (tmp_path / "nowhere").symlink_to("not/there")
    (tmp_path / "round").symlink_to("round")
    return tmp_path


@pytest.fixture
def nothing_runs(monkeypatch) -> None:
    def work(*_: object) -> None:
        raise AssertionError("the work has begun")

    for function in ("lab.comparison.knees_of", "lab.comparison.compare", "lab.faults.run_scenes", "lab.fit.fit"):
        monkeypatch.setattr(f"epp.{function}", work)
    monkeypatch.setattr("epp.lab.measure.measure", work)


@pytest.mark.parametrize(
    ("command", "one", "other"),
    [
        ("run", "--json x", "--report ./x"),
        ("sweep", "--json x", "--report same/dir/../x"),
        ("table --quick", "--json made", "--report x"),
        ("run", "--json hard", "--report c.yaml"),
        ("run", "--trace t.jsonl", "--json ./t.jsonl"),
        ("run", "--workload t.jsonl", "--report same/t.jsonl"),
        ("faults", "--trace t.jsonl", "--json t.jsonl"),
        ("run", "--config c.yaml", "--report hard"),
        ("sweep", "--config c.yaml", "--json same/c.yaml"),
        ("table --quick", "--policies c.yaml", "--json c.yaml"),
        ("faults", "--pool mine.jsonx2", "--json mine.json"),
        ("fit --url http://127.0.0.1:1", "--out x", "--measurements ./x"),
        ("fit", "--csv m.csv", "--out m.csv"),
        ("fit", "--csv m.csv", "--measurements ./m.csv"),
        ("fit --csv m.csv", "--like mine.json", "--out same/mine.json"),
    ],
)
def test_no_result_is_written_over_another_or_over_what_is_read(
    command: str, one: str, other: str, folder, nothing_runs, capsys
) -> None:
    assert main(["lab", *command.split(), *other.split(), *one.split()]) == 2
    said = capsys.readouterr().err
    assert "are the same file" in said
    assert all(f"{flags.split()[0]} " in said for flags in (one, other))
    assert said.count("\n") == 1
    assert {name: (folder / name).read_text() for name in FILES} == FILES
    assert not (folder / "x").exists()


def test_a_result_is_not_written_where_the_tables_are_printed(folder, nothing_runs, monkeypatch, capsys) -> None:
    with (folder / "printed").open("w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        assert main(["lab", "run", "--json", "printed"]) == 2
    assert "standard output and --json printed are the same file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--json /dev/null --report /dev/null",
        "--json pipe --report pipe",
        "--policies random --json random",
        "--pool h100x4 --json h100x4",
        "--config c.yaml --json c.json --report c.html",
        "--trace t.jsonl --json dir/t.jsonl",
    ],
)
def test_results_that_replace_nothing_may_be_written(flags: str, folder, nothing_runs) -> None:
    """Where nothing is kept, several may go, and what is called like a policy of ours is a file like any other."""
    os.mkfifo(folder / "pipe")
    with pytest.raises(AssertionError, match="the work has begun"):
        main(["lab", "run", *flags.split()])


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("not/there", "there is no directory not"),
        ("c.yaml/x", "there is no directory c.yaml"),
        ("nowhere", "there is no directory {folder}/not"),
        ("round", "Too many levels of symbolic links"),
        ("dir", "it is a directory"),
        ("new/", "it is a directory"),
        ("long" * 100, "File name too long"),
    ],
    ids=lambda value: value[:12],
)
@pytest.mark.parametrize("flags", ["run --json", "run --report", "faults --json", "fit --csv m.csv --out"])
def test_a_place_where_nothing_can_be_written_is_refused(
    flags: str, path: str, why: str, folder, nothing_runs, capsys
) -> None:
    assert main(["lab", *flags.split(), path]) == 2
    assert f"cannot be written: {why.format(folder=folder)}" in capsys.readouterr().err


@pytest.mark.parametrize(("place", "mode"), [("c.yaml", 0o444), ("dir/x", 0o500), ("dir/x", 0o600)])
def test_permission_is_looked_at_before(place: str, mode: int, folder, nothing_runs, capsys) -> None:
    locked = folder / Path(place).parts[0]
    locked.chmod(mode)
    (folder / "probe").touch(0o444)
    if os.access(folder / "probe", os.W_OK):
        pytest.skip("root may write everywhere: run this as somebody else, or without CAP_DAC_OVERRIDE")
    assert main(["lab", "run", "--json", place]) == 2
    assert f"{place}: cannot be written: permission denied" in capsys.readouterr().err.lower()
