"""The image, as far as it can be judged without an engine: what goes in, who runs, and what is run."""

import io
import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[2]
Step = tuple[str, str]


@pytest.fixture(scope="module")
def stages() -> list[list[Step]]:
    """Instructions and their values, by stage; what precedes the first stage is left out."""
    parser = DockerfileParser(fileobj=io.BytesIO((ROOT / "Containerfile").read_bytes()))
    found: list[list[Step]] = []
    for step in parser.structure:
        if step["instruction"] == "FROM":
            found.append([])
        if found and step["instruction"] != "COMMENT":
            found[-1].append((step["instruction"], step["value"]))
    return found


def value(stage: list[Step], instruction: str) -> str:
    (found,) = [value for name, value in stage if name == instruction]
    return found


def test_the_image_runs_as_nobody_and_takes_flags_of_epp_serve(stages: list[list[Step]]) -> None:
    _, final = stages
    user, _, group = value(final, "USER").partition(":")
    assert int(user) > 0 < int(group)
    assert json.loads(value(final, "ENTRYPOINT")) == ["epp", "serve"]
    chart = (ROOT / "manifests/chart/headroom/templates/deployment.yaml").read_text()
    assert f'"runAsUser" {user}' in chart


def test_nothing_is_built_in_the_final_stage(stages: list[list[Step]]) -> None:
    build, final = stages
    assert "RUN" not in [name for name, _ in final]
    assert [value for name, value in final if name == "COPY"] == ["--from=build /opt/headroom /opt/headroom"]
    assert [value for name, value in build if name == "RUN" and "HEADROOM_COMPILE=1" in value]
    assert value(build, "FROM").split()[0] == value(final, "FROM"), "the interpreter of the venv is the base's"


def test_the_build_gets_what_it_copies_and_the_wheel_needs(stages: list[list[Step]]) -> None:
    copied = [source for name, value in stages[0] if name == "COPY" for source in value.split()[:-1]]
    kept = [line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(copied) == sorted(kept)
    for source in copied:
        assert (ROOT / source).exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["force-include"], project["project"]["readme"]]
    needed += [*project["project"]["license-files"], project["tool"]["hatch"]["build"]["hooks"]["custom"]["path"]]
    for path in needed:
        assert any(path == source or path.startswith(f"{source}/") for source in copied), path
    ignored = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("**/")]
    assert any(fnmatch("epp/wire/ext_proc_pb2.py", pattern.removeprefix("**/")) for pattern in ignored)


def test_the_base_has_a_python_that_the_package_allows() -> None:
    (version,) = re.findall(
        r"^ARG PYTHON=\S+/python:(\d+\.\d+)-slim", (ROOT / "Containerfile").read_text(), re.MULTILINE
    )
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required.startswith(">=")
    assert tuple(map(int, version.split("."))) >= tuple(map(int, required.removeprefix(">=").split(".")))
