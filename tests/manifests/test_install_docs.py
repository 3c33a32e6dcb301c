"""The pages about installing say what the chart, the flags and the engines are."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import CHART

from epp.cli.flags import Parser
from epp.cli.llmd_flags import add_flags_without_effect
from epp.problem import Problem
from epp.signals.engines import BUILT_IN_ENGINES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "install.md", DOCS / "migrate-from-llm-d.md", DOCS / "compatibility.md", ROOT / "manifests/README.md"]
# Values of llm-d's chart that ours refuses, and says so.
OF_LLMD = {
    "provider.gke.preferredBackends",
    "router.epp.autoscaling",
    "router.proxy.mode",
    "router.proxy.proxyType",
    "router.tokenizer",
    "router.tracing",
}


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table under this header."""
    lines = (DOCS / page).read_text().splitlines()
    table = []
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def test_flags_without_effect_are_those_of_the_table() -> None:
    """And what it says of each is what the parser does with it."""
    table = {flag.strip("`"): said for flag, said in rows("migrate-from-llm-d.md", "| flag | here |")}
    parser = Parser(prog="epp")
    add_flags_without_effect(parser)
    known = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    assert table.keys() == known

    def takes(flag: str, value: str) -> bool:
        try:
            parser.parse_args([f"{flag}={value}"])
        except (Problem, SystemExit):
            return False
        return True

    for flag, said in table.items():
        assert takes(flag, "false") == said.startswith("accepted"), flag
        assert takes(flag, "x") == (said.startswith("accepted") and "refused otherwise" not in said), flag


def test_engines_are_those_of_the_table() -> None:
    table = rows("compatibility.md", "| engine | waiting | running | KV cache in use |")
    assert [row[0].strip("`") for row in table] == [engine.name for engine in BUILT_IN_ENGINES]
    source = (ROOT / "epp" / "signals" / "engines.py").read_text()
    for _, *signals in table:
        for name in re.findall(r"`([^`]+)`", " ".join(signals)):
            assert f'"{name}"' in source


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_values_files_and_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())

    def exists(path: str) -> bool:
        here: Any = defaults
        for key in path.split("."):
            if here == {}:
                return True  # free keys, such as flags
            if not isinstance(here, dict) or key not in here:
                return False
            here = here[key]
        return True

    values = set(re.findall(r"(?<![\w./])(?:router|httpRoute|provider)(?:\.[\w-]+)+", text)) - OF_LLMD
    assert [path for path in sorted(values) if not exists(path)] == []
    links = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    for path in re.findall(r"(?<![\w/])(?:manifests|tests|envoy)/[\w./-]*\w", text):
        assert (ROOT / path.replace("PROVIDER", "gke")).exists(), path
