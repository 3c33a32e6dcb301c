import sys
from pathlib import Path

import pytest

from epp.scheduling.plugin import Discovery, Extractor, Parser
from epp.scheduling.registry import Registry

MODULE = """
from epp.scheduling.plugin import Parser, Discovery

class Helper(Parser):
    pass

class {name}(Helper):
    plugin_type = "{type}"
    aliases = ("old-{type}",)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"fake_plugins_{abs(hash(request.node.name))}"
    (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "inner" / "__init__.py").write_text("")
    (tmp_path / name / "one.py").write_text(MODULE.format(name="One", type="one"))
    (tmp_path / name / "inner" / "two.py").write_text(
        f"from {name}.one import One\n" + MODULE.format(name="Two", type="two")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[module]


def test_discovery_finds_types_and_aliases_in_every_module_once(package: str) -> None:
    registry = Registry.discover(package)
    assert sorted(registry) == ["old-one", "old-two", "one", "two"]
    assert registry.get("old-two") is registry.get("two")
    assert registry.get("three") is None
    assert "one" in registry


def test_two_classes_with_one_type_are_an_error() -> None:
    first = type("First", (Parser,), {"plugin_type": "x"})
    second = type("Second", (Discovery,), {"plugin_type": "y", "aliases": ("x",)})
    third = type("Third", (Extractor,), {"plugin_type": "z"})
    with pytest.raises(ValueError, match=r"'x' is claimed by .*First and .*Second"):
        Registry([first, second, third])


def test_registries_share_nothing() -> None:
    Registry([type("First", (Parser,), {"plugin_type": "x"})])
    assert list(Registry([])) == []
