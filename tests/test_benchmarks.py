"""Benchmarks start, and the load they make is the load they report."""

import re
import runpy
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks are no part of the installed package

from benchmarks.load import programs  # noqa: E402
from benchmarks.load.programs import Load, LoadError, Upstream, compiled, compiler, run_load  # noqa: E402

BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_"))


def no_compiler() -> bool:
    try:
        return not compiler()
    except LoadError:
        return False  # who needs one is to fail by this, and nobody else


needs_compiler = pytest.mark.skipif(no_compiler(), reason="no C compiler: the load generator is NOT tested")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def test_every_benchmark_is_in_the_readme() -> None:
    named = set(re.findall(r"python -m benchmarks\.(\w+)", (ROOT / "benchmarks" / "README.md").read_text()))
    assert set(BENCHMARKS) - named == set(), "say in benchmarks/README.md which question they answer"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        yield running


def page(upstream: Upstream, host: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{host}:{upstream.port}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_flags_may_follow_the_compiler_in_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "sh -O1")
    assert compiler() == ["sh", "-O1"]
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    assert compiler() == []
    monkeypatch.setenv("CC", "gcc '")
    with pytest.raises(LoadError, match=r"\$CC is \"gcc '\".*No closing quotation; mend it, or unset it"):
        compiler()
    assert not no_compiler()


@needs_compiler
def test_another_compiler_compiles_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "BUILD", tmp_path)
    before, again = compiled("upstream"), compiled("upstream")
    assert before == again
    monkeypatch.setenv("CC", f"{compiler()[0]} -no-such-flag")
    with pytest.raises(LoadError, match="no-such-flag"):
        compiled("upstream")


@needs_compiler
def test_servers_and_clients_count_the_same(upstream: Upstream) -> None:
    streamed = run_load(
        Load(upstream.port, "127.1.0.7", connections=4, requests=150, seconds=30, body_bytes=3_000, max_tokens=20)
    )
    whole = run_load(Load(upstream.port, connections=3, requests=50, seconds=30, stream=0, max_tokens=7))
    assert (streamed.total_completed, streamed.completed, streamed.unfinished) == (150, 150, 0)
    assert streamed.chunks == 150 * 21  # a token each, and the usage
    assert (whole.total_completed, whole.chunks) == (50, 0)
    assert 0 < streamed.first_p50_us <= streamed.total_p50_us <= streamed.total_p99_us
    served = page(upstream, "127.1.0.7")
    assert served["vllm:generation_tokens_total"] == 150 * 20 + 50 * 7
    assert served["vllm:prompt_tokens_total"] == 150 * (3_000 // 4 + 1) + 50 * (1_024 // 4 + 1)
    assert served["vllm:num_requests_running"] == 0


@needs_compiler
def test_an_open_loop_keeps_its_rate_and_a_pace_is_kept(upstream: Upstream) -> None:
    result = run_load(
        Load(upstream.port, connections=64, rate=200, requests=60, seconds=30, max_tokens=5, interval_us=20_000)
    )
    assert result.total_completed == 60
    assert result.seconds >= 59 / 200
    assert result.total_p50_us >= 60_000  # 1 ms, and three times the interval


@needs_compiler
def test_a_load_that_fails_is_no_figure() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(LoadError, match="requests failed"):
            run_load(Load(nobody.getsockname()[1], connections=2, requests=10))
