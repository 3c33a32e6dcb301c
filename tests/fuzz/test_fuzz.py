"""Every input of the corpus again, and some new ones for each target. `make fuzz` takes longer over it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from run import CORPUS, HERE

RUN = HERE / "run.py"
SECONDS = 1

INPUTS = [path for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


def test_every_target_has_a_corpus_and_every_corpus_a_target():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_of_the_corpus_breaks_no_promise(path: Path):
    TARGETS[path.parent.name](path.read_bytes())


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `run.py` says of all targets. They share one process, which takes longer to load than to fuzz."""
    into = tmp_path_factory.mktemp("fuzz")
    command = [sys.executable, RUN, "--seconds", str(SECONDS), "--into", into]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False)
    assert result.stdout, f"ended with {result.returncode} and said nothing"
    return result.stdout


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="NOT FUZZED: pip install '.[fuzz]' first")
@pytest.mark.timeout(400)  # one waits for all
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_seconds_of_new_inputs_break_no_promise(name: str, fuzzed: str):
    assert f"{name}: ok" in fuzzed.splitlines(), fuzzed
