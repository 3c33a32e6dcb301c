"""Which plugin types exist: found by looking into a package, kept in a value, not in a global."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator

from epp.scheduling.plugin import Plugin


class Registry:
    """Plugin classes by the type string, or a deprecated spelling of it, that configurations use.

    Raises:
        ValueError: two classes claim one type string.
    """

    def __init__(self, plugin_classes: Iterable[type[Plugin]]) -> None:
        self._by_type: dict[str, type[Plugin]] = {}
        for plugin_class in plugin_classes:
            for type_name in (plugin_class.plugin_type, *plugin_class.aliases):
                other = self._by_type.setdefault(type_name, plugin_class)
                if other is not plugin_class:
                    raise ValueError(
                        f"plugin type {type_name!r} is claimed by {other.__module__}.{other.__qualname__} "
                        f"and {plugin_class.__module__}.{plugin_class.__qualname__}"
                    )

    @staticmethod
    def discover(package_name: str = "epp.plugins") -> "Registry":
        """Every class in the package's modules that names a `plugin_type` in its own body."""
        package = importlib.import_module(package_name)
        found: dict[type[Plugin], None] = {}
        for module_info in pkgutil.walk_packages(package.__path__, f"{package_name}."):
            module = importlib.import_module(module_info.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Plugin) and "plugin_type" in vars(value):
                    found[value] = None
        return Registry(found)

    def get(self, type_name: str) -> type[Plugin] | None:
        return self._by_type.get(type_name)

    def __contains__(self, type_name: object) -> bool:
        return type_name in self._by_type

    def __iter__(self) -> Iterator[str]:
        """Every type string, deprecated spellings included."""
        return iter(self._by_type)
