"""Shapes of servers that are fitted to measurements: the law is found again, and files of them are read."""

import json
import random

import pytest

from epp.cli import main
from epp.lab.fit import Measurement, fit, read_measurements, write_measurements
from epp.lab.pools import ENGINES, parse_pool, shape_text
from epp.problem import Problem
from epp.sim.timing import Hardware


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:8000", "begins with neither http:// nor https://"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://127.0.0.1:99999", "Port out of range 0-65535"),
        ("http://127.0.0.1:0", "has a port that is none"),
        ("http://127.0.0.1:x", "Port could not be cast to integer"),
        ("http://a b", "has a space in it"),
    ],
)
def test_a_server_to_fit_is_named_by_its_url(url: str, says: str, capsys) -> None:
    assert main(["lab", "fit", "--url", url, "--model", "m"]) == 2
    said = capsys.readouterr().err
    assert f"--url {url}: {says}" in said
    assert "write for example http://10.0.0.1:8000" in said


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


HEAD = "streams,prompt_tokens,output_tokens,ttft_ms,tpot_ms"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["1,64,32,30,7"],
            "they do not tell base_ms, prefill_token_us, sequence_us, overhead_ms; measure several numbers",
        ),
        (["1,100,10,30,7"] * 4, "and prompts of several lengths, such as 64, 512 and 2048 tokens"),
        (["1,100,10,30,", "1,200,10,60,", "4,400,10,120,"], "measure tpot_ms, of answers of two tokens or more"),
        (["1,100,10,30,7", "1,200,10,32,7", "1,900,10,60,7.1"], "do not tell base_ms, sequence_us; measure several"),
        (
            ["1,800,10,30,7", "2,400,10,30.1,7.1", "4,200,10,30,7.3"],
            "prefill_token_us, overhead_ms; measure prompts of",
        ),
        (["1,100,10,30,7", "2,100,10,32,7.1"], "they are as few as the 4 constants; measure more lengths and numbers"),
        (["1,100,10,30,7", "2,100,10,32,7.1"] * 3, "they are as few as the 4 constants"),
    ],
)
def test_what_was_not_measured_is_named_and_not_made_up(tmp_path, lines: list[str], says: str, capsys) -> None:
    path, out = tmp_path / "m.csv", tmp_path / "out.json"
    path.write_text("\n".join([HEAD, *lines]))
    assert main(["lab", "fit", "--csv", str(path), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"{path}: too few measurements: ")
    assert says in said.err
    assert (said.out, out.exists()) == ("", False)


@pytest.mark.parametrize(
    ("base_ms", "times", "says"),
    [
        (0.0, 1.0, "base_ms has to be above 0; a step takes time even with one stream"),
        (-0.2, 1.0, "base_ms has to be above 0"),
        (9.0, 1e4, "base_ms has to be 0 or more and at most 10,000, and is 90000"),
    ],
)
def test_a_shape_that_no_pool_could_be_of_is_not_written(
    tmp_path, base_ms: float, times: float, says: str, capsys
) -> None:
    path, out = tmp_path / "m.csv", tmp_path / "out.json"
    ladder = ((1, 64), (1, 512), (1, 2048), (4, 256), (16, 64))
    rows = (f"{n},{t},32,{times * (base_ms + 20 + n * t / 50 + n)},{times * (base_ms + n)}" for n, t in ladder)
    path.write_text("\n".join([HEAD, *rows]))
    assert main(["lab", "fit", "--csv", str(path), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert f"{path}: what fits these measurements is no server: {says}" in said.err
    assert (said.out, out.exists()) == ("", False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-1,100,10,30,7", "streams -1 is not from 1 to 100000"),
        ("0,100,10,30,7", "streams 0 is not"),
        ("1.5,100,10,30,7", "streams 1.5 is not a whole number"),
        ("few,100,10,30,7", "streams 'few' is not a number"),
        ("1,1e300,10,30,7", "prompt_tokens 1e300 is not from 1 to 1e+07"),
        ("1,inf,10,30,7", "prompt_tokens inf is not from 1"),
        ("1,100,nan,30,7", "output_tokens nan is not from 1"),
        ("1,100,10,1e-300,7", "ttft_ms 1e-300 is not from 0.001 to 1e+08"),
        ("1,100,10,30,-7", "tpot_ms -7 is not from 0.001"),
        ("1,100,10", "the line ends early"),
    ],
)
def test_a_measurement_that_is_none_is_named(tmp_path, line: str, says: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(f"{HEAD}\n1,64,10,30,7\n{line}\n")
    with pytest.raises(Problem) as refused:
        read_measurements(path)
    assert str(refused.value).startswith(f"{path}:3: no measurement: {says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no measurements in it"),
        (f"{HEAD}\n", "no measurements in it"),
        ("prompt_tokens,ttft_ms\n1,2\n", "no measurement: no column streams"),
        ("\0", "no measurements in it"),
    ],
)
def test_a_file_without_measurements_is_named(tmp_path, text: str, says: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(Problem) as refused:
        read_measurements(path)
    assert str(path) in str(refused.value)
    assert f"{says}; expected a CSV with the head {HEAD}" in str(refused.value)


def test_times_that_a_server_made_unusable_are_named() -> None:
    """Its answers came in one piece."""
    with pytest.raises(Problem, match=r"^tpot_ms 0 of 1 streams is not from 0\.001 to 1e\+08$"):
        fit([Measurement(1, 64, 32, 30.0, 0.0)] * 5)


def test_a_ladder_that_is_cut_too_short_is_not_climbed(capsys) -> None:
    assert main(["lab", "fit", "--url", "http://127.0.0.1:1", "--longest", "100"]) == 2
    assert "--longest 100: too few of the ladder's prompts are as short; say 128" in capsys.readouterr().err
    assert main(["lab", "fit", "--url", "http://127.0.0.1:1", "--longest", "128"]) == 2
    assert "--longest" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}", "no base_ms"), ("[]", "no JSON object"), ('{"base_ms": [1]}', "base_ms is not a number")],
)
def test_what_a_shape_lacks_is_named(tmp_path, text: str, says: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(Problem) as refused:
        parse_pool(str(path))
    assert f"{path}: no shape of a server ({says});" in str(refused.value)
