"""Shapes of servers that are fitted to measurements: the law is found again, and files of them are read."""

import json
import random

import pytest

from epp.cli import main
from epp.lab.fit import Measurement, fit, read_measurements, write_measurements
from epp.lab.pools import ENGINES, parse_pool, shape_text
from epp.problem import Problem
from epp.sim.timing import Hardware


def test_a_server_to_fit_is_named_by_its_url(capsys) -> None:
    assert main(["lab", "fit", "--url", "127.0.0.1:8000", "--model", "m"]) == 2
    assert "--url 127.0.0.1:8000: begins with neither http:// nor https://" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_ms", "NaN"),
        ("base_ms", "0"),
        ("kv_tokens", "1"),
        ("max_sequences", "0"),
        ("sequence_us", "Infinity"),
        ("base_ms", "1e5"),
        ("kv_tokens", "1e300"),
    ],
)
def test_a_shape_that_no_server_can_have_is_refused(tmp_path, name: str, value: str) -> None:
    path = tmp_path / "mine.json"
    shape = json.loads(shape_text(ENGINES["8b-h100"].hardware, 20.0, ENGINES["8b-h100"]))
    path.write_text(json.dumps(shape | {name: float(value)}))
    with pytest.raises(Problem, match=f"no shape of a server .{name} "):
        parse_pool(str(path))


def test_a_fit_finds_the_law_again(tmp_path) -> None:
    law, overhead_ms, rng = Hardware(7.2, 18.5, 34.0), 18.0, random.Random(1)
    measurements = [
        Measurement(
            n,
            tokens,
            32,
            (overhead_ms + law.step_ms(n * tokens, n)) * rng.uniform(0.98, 1.02),
            law.step_ms(0, n) * rng.uniform(0.98, 1.02),
        )
        for n, tokens in ((1, 64), (1, 512), (1, 2048), (4, 256), (16, 64), (64, 64))
    ]
    path = tmp_path / "m.csv"
    write_measurements(path, measurements)
    assert read_measurements(path) == measurements
    found = fit(read_measurements(path))
    assert found.hardware.base_ms == pytest.approx(7.2, rel=0.05)
    assert found.hardware.prefill_token_us == pytest.approx(18.5, rel=0.05)
    assert found.hardware.sequence_us == pytest.approx(34.0, rel=0.2)
    assert found.overhead_ms == pytest.approx(18.0, rel=0.1)
    assert found.error_ratio < 0.02
    shape = tmp_path / "mine.json"
    shape.write_text(shape_text(found.hardware, found.overhead_ms, ENGINES["8b-h100"]))
    (first, second) = parse_pool(f"{shape}x2")
    assert (first.name, second.name) == ("mine-0", "mine-1")
    assert first.engine.hardware == found.hardware


def test_what_a_ladder_cannot_show_a_fitted_shape_has_of_another(tmp_path, capsys) -> None:
    law, csv, shape = Hardware(11.0, 50.0, 34.0), tmp_path / "m.csv", tmp_path / "mine.json"
    ladder = ((1, 64), (1, 512), (1, 2048), (4, 256), (16, 64))
    write_measurements(csv, [Measurement(n, t, 32, 18.0 + law.step_ms(n * t, n), law.step_ms(0, n)) for n, t in ladder])
    for flags, like in (([], "8b-h100"), (["--like", "a100"], "8b-a100"), (["--like", "70b-h100-tp4"], "70b-h100-tp4")):
        assert main(["lab", "fit", "--csv", str(csv), "--out", str(shape), *flags]) == 0
        (server,) = parse_pool(str(shape))
        fitted, known = server.engine.hardware, ENGINES[like].hardware
        assert fitted.prefill_token_us == pytest.approx(50.0, rel=0.01)
        assert fitted.attention_pair_ns == known.attention_pair_ns > 0
        assert fitted.context_token_ns == known.context_token_ns > 0
        assert server.engine.kv_blocks == ENGINES[like].kv_blocks
        named = flags[1] if flags else like
        said = f"attention_pair_ns {known.attention_pair_ns:.4g}, not measured: as of {named}"
        assert said in capsys.readouterr().out
    assert main(["lab", "fit", "--csv", str(csv), "--like", "h200"]) == 2
    assert "--like: no shape is called 'h200'; there are h100" in capsys.readouterr().err


def test_a_fit_needs_enough_and_the_right_file(tmp_path) -> None:
    with pytest.raises(Problem, match="too few"):
        fit([Measurement(1, 64, 32, 30.0, 7.0)])
    path = tmp_path / "m.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(Problem, match="no measurements"):
        read_measurements(path)
    write_measurements(path, [Measurement(1, float("inf"), 32, 30.0, 7.0)])
    with pytest.raises(Problem, match="prompt_tokens inf is not above 0 and finite"):
        read_measurements(path)
