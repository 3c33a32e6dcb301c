"""`epp model`: what it shows, and that an export comes back the same."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xgboost
from latency_world import World

from epp.cli import main
from epp.latency.bundle import METADATA, SAMPLES
from epp.latency.features import FEATURES
from epp.latency.persistence import dump
from epp.latency.predictor import Predictor, PredictorOptions
from epp.latency.restoring import load
from epp.latency.training import train
from epp.latency.types import Target


@pytest.fixture(scope="module")
def content() -> bytes:
    world, predictor = World(), Predictor(PredictorOptions(training_min_rows=100))
    world.run(predictor, 300, quantile=0.9)
    job = predictor.training_due(world.now_s)
    assert job is not None
    assert predictor.publish(train(job))
    return dump(predictor.snapshot(world.now_s))


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "latency.model"
    path.write_bytes(content)
    return path


def run(*arguments: object) -> int:
    return main(["model", *map(str, arguments)])


def test_show_tells_what_there_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", file) == 0
    shown = capsys.readouterr().out
    for text in ("model version  1", "300 kept, 300 learned from", "ready          ttft, tpot, e2e", "uncached_tokens"):
        assert text in shown
    rows = [line.split() for line in shown.splitlines()]
    assert [row[0] for row in rows if len(row) == 5 and row[0] in ("ttft", "tpot", "e2e")]
    assert [row for row in rows if row[:1] == ["a"]]


def test_show_of_a_model_that_has_learned_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.model"
    path.write_bytes(dump(Predictor().snapshot(0.0)))
    assert run("show", path) == 0
    assert "ready          for nothing yet" in capsys.readouterr().out


def test_an_export_is_read_by_xgboost_and_comes_back_the_same(file: Path, tmp_path: Path) -> None:
    folder, back = tmp_path / "exported", tmp_path / "back.model"
    assert run("export", file, folder) == 0
    booster = xgboost.Booster(model_file=folder / "ttft.mean.json")
    assert booster.num_features() == len(FEATURES)
    assert json.loads((folder / METADATA).read_text())["model_version"] == 1
    assert len((folder / SAMPLES).read_text().splitlines()) == 301
    assert run("import", folder, back) == 0
    before, after = load(file.read_bytes()).state, load(back.read_bytes()).state
    assert before is not None
    assert after is not None
    assert after.rows.endpoint_ids == list(before.rows.endpoint_ids)
    for name in ("features", "actual_ms", "at_s", "bucket"):
        np.testing.assert_array_equal(getattr(after.rows, name), getattr(before.rows, name))
    one, two = Predictor(), Predictor()
    one.restore(before, 0.0)
    two.restore(after, 0.0)
    situation = World(seed=3).situation()
    p, q = (predictor.predict(situation, quantile=0.95, e2e=True) for predictor in (one, two))
    np.testing.assert_array_equal(p.ttft.bound_ms, q.ttft.bound_ms)
    np.testing.assert_array_equal(p.tpot.bound_ms, q.tpot.bound_ms)
    assert one.state(0.0) == two.state(0.0)


def test_a_model_without_trees_or_samples_is_exported_too(tmp_path: Path) -> None:
    path, folder, back = tmp_path / "empty.model", tmp_path / "exported", tmp_path / "back.model"
    path.write_bytes(dump(Predictor().snapshot(0.0)))
    assert run("export", path, folder) == 0
    assert run("import", folder, back) == 0
    state = load(back.read_bytes()).state
    assert state is not None
    assert (state.model, len(state.rows)) == (None, 0)


def test_a_model_file_is_imported_from_a_model_file(file: Path, tmp_path: Path) -> None:
    back = tmp_path / "back.model"
    back.write_bytes(b"old")
    assert run("import", file, back) == 0
    state = load(back.read_bytes()).state
    assert state is not None
    assert state.model is not None
    assert Target.TTFT in state.model.targets


def edit(folder: Path, **fields: object) -> None:
    metadata = json.loads((folder / METADATA).read_text())
    (folder / METADATA).write_text(json.dumps(metadata | fields))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda folder: edit(folder, feature_set="0" * 16), "made for other features"),
        (lambda folder: edit(folder, format=99), "another version of the format"),
        (lambda folder: edit(folder, prior={}), "is missing"),
        (lambda folder: (folder / METADATA).write_text("[]"), ""),
        (lambda folder: (folder / METADATA).write_text("{"), ""),
        (lambda folder: (folder / METADATA).unlink(), "metadata.json is missing"),
        (lambda folder: (folder / SAMPLES).write_text("a,b\n"), "other columns"),
        (lambda folder: (folder / SAMPLES).write_bytes(b""), ""),
        (lambda folder: (folder / SAMPLES).write_bytes(b"\xff"), ""),
        (lambda folder: (folder / "ttft.mean.json").unlink(), "ttft.mean.json is missing"),
        (lambda folder: (folder / "ttft.spread.json").write_text("{}"), ""),
    ],
)
def test_a_bad_import_is_one_line_and_leaves_the_model_alone(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm, why: str
) -> None:
    folder, kept = tmp_path / "exported", file.read_bytes()
    assert run("export", file, folder) == 0
    harm(folder)
    capsys.readouterr()
    assert run("import", folder, file) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert why in err
    assert file.read_bytes() == kept


def test_files_that_are_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello")
    for arguments in (
        ("show", tmp_path / "nothing"),
        ("show", tmp_path / "text"),
        ("export", tmp_path / "text", tmp_path / "x"),
        ("import", tmp_path, tmp_path / "y"),
    ):
        assert run(*arguments) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert str(tmp_path) in err


def test_what_cannot_be_written_is_one_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("export", file, file / "x"), ("import", file, tmp_path / "no" / "such")):
        assert run(*arguments) == 2
        assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_pipe_or_a_device_is_not_replaced_by_a_model(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run("import", file, pipe) == 2
    assert str(pipe) in capsys.readouterr().err
    assert pipe.is_fifo()
