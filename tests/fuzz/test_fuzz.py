"""Every input of the corpus again, and some new ones for each target. `make fuzz` takes longer over it."""

import importlib.util
from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from run import CORPUS, fuzz_in_process_of_its_own

SECONDS = 1

INPUTS = [path for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


def test_every_target_has_a_corpus_and_every_corpus_a_target():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_of_the_corpus_breaks_no_promise(path: Path):
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="NOT FUZZED: pip install '.[fuzz]' first")
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_seconds_of_new_inputs_break_no_promise(name: str, tmp_path: Path):
    result = fuzz_in_process_of_its_own(name, SECONDS, tmp_path)
    assert result.returncode == 0, result.stdout[-6000:]
