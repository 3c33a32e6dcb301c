"""A configuration on its way: plugin instances by name, and what there is to say about the file so far."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from epp.config.ecosystem import KNOWN_TYPES
from epp.config.errors import ConfigError, KeyPath, Remark, did_you_mean, printable
from epp.config.loader import Document
from epp.config.schema import EndpointPickerConfig
from epp.config.validation import models_in, validate
from epp.scheduling.plugin import Plugin, Services, Stability
from epp.scheduling.registry import Registry

T = TypeVar("T")


class Draft:
    """What the rules of `defaults` and `resolve` work on.

    Attributes:
        instances: by name; the declared ones in the order of the file, then what the defaults added.
        declared_at: where each declared instance stands.
        injected: names of the instances that nobody declared.
        notices: what the user should know, though it does not stop anything.
    """

    def __init__(
        self,
        document: Document,
        spec: EndpointPickerConfig,
        registry: Registry,
        services: Services,
        allow_experimental: bool,
    ) -> None:
        self.document = document
        self.spec = spec
        self.registry = registry
        self.instances: dict[str, Plugin] = {}
        self.declared_at: dict[str, KeyPath] = {}
        self.injected: set[str] = set()
        self.notices: list[Remark] = []
        self._problems: list[Remark] = []
        self._services = services
        self._allow_experimental = allow_experimental

    # --- remarks --------------------------------------------------------------------------------------------------

    def problem(self, path: KeyPath, message: str, fix: str = "") -> None:
        self._problems.append(self.document.remark(path, message, fix))

    def notice(self, path: KeyPath, message: str, fix: str = "") -> None:
        self.notices.append(self.document.remark(path, message, fix))

    def stop_on_problems(self) -> None:
        """Raises: ConfigError: with all problems since the last stop, if there are any."""
        if self._problems:
            raise ConfigError(self._problems)

    # --- instances ------------------------------------------------------------------------------------------------

    def declare_all(self) -> None:
        """An instance for each entry of `plugins`. All problems are found before it stops."""
        for index, entry in enumerate(self.spec.plugins):
            path: KeyPath = ("plugins", index)
            name = entry.name or entry.type
            if not entry.type:
                self.problem(path, f"plugin '{printable(name)}' is missing a type", "add `type:`")
            elif name in self.declared_at:
                line = self.document.line(self.declared_at[name])
                message = f"duplicate plugin name '{printable(name)}', first on line {line}"
                self.problem(path, message, "give one of them another `name:`")
            else:
                self.declared_at[name] = path
                self._create(name, entry.type, entry.parameters, path)
        self.stop_on_problems()

    def inject(self, name: str) -> Plugin:
        """The instance of that name; if there is none, one of that type with default parameters.

        Raises:
            ConfigError: there is no such type; with all problems so far.
        """
        if name not in self.instances:
            self._create(name, name, {}, ())
            if name not in self.instances:
                raise ConfigError(self._problems)
            self.injected.add(name)
        return self.instances[name]

    def of_role(self, role: type[T]) -> dict[str, T]:
        """Instances that play `role`, by name, in order."""
        return {name: plugin for name, plugin in self.instances.items() if isinstance(plugin, role)}

    def find(self, reference: str, role: type[T], role_name: str, path: KeyPath) -> T | None:
        """What `reference`, standing at `path`, refers to; a problem and `None` when it is not `role_name`."""
        at = (*path, "pluginRef") if self.document.exists((*path, "pluginRef")) else path
        if not reference:
            self.problem(at, "plugin reference is empty", "name an instance of `plugins`")
            return None
        plugin = self.instances.get(reference)
        if plugin is None:
            fix = did_you_mean(reference, self.instances) or "declare it under `plugins`"
            if reference in self.registry:
                fix = f"add `- type: {reference}` to `plugins`"
            self.problem(at, f"references undefined plugin '{printable(reference)}'", fix)
            return None
        if not isinstance(plugin, role):
            known = self.of_role(role)
            fix = f"there are: {', '.join(map(printable, known))}" if known else "there is none in `plugins`"
            self.problem(at, f"the plugin '{printable(reference)}' is not {role_name}", fix)
            return None
        return plugin

    def _create(self, name: str, type_name: str, parameters: Mapping[str, Any], path: KeyPath) -> None:
        plugin_class = self.registry.get(type_name)
        at: KeyPath = (*path, "type") if path else ()
        if plugin_class is None:
            shown_type = printable(type_name)
            if type_name in KNOWN_TYPES:
                message = f"plugin type '{shown_type}' is known to llm-d but not available in this version"
                fix = "remove the plugin and its references" if path else "it is a default: configure another"
                self.problem(at, message, fix)
            else:
                fix = did_you_mean(type_name, [*self.registry, *KNOWN_TYPES])
                self.problem(at, f"plugin type '{shown_type}' is not registered", fix)
            return
        self._note_stability(type_name, plugin_class, at)
        parameters_at = (*path, "parameters")
        try:
            validated = validate(plugin_class.parameters_model, parameters, self.document, parameters_at)
        except ConfigError as error:
            self._problems += error.problems
            return
        self._note_parameters(plugin_class.plugin_type, plugin_class.parameters_model, parameters, parameters_at)
        try:
            self.instances[name] = plugin_class(name, validated, self._services)
        except Exception as error:  # whatever a constructor dislikes is a fault of its configuration
            message = (
                f"failed to create plugin '{printable(name)}' (type: {printable(type_name)}): {printable(str(error))}"
            )
            self.problem(parameters_at if self.document.exists(parameters_at) else path, message)

    def _note_stability(self, type_name: str, plugin_class: type[Plugin], path: KeyPath) -> None:
        if type_name != plugin_class.plugin_type:
            message = f"plugin type '{type_name}' is a deprecated spelling"
            self.notice(path, message, f"write '{plugin_class.plugin_type}'")
        if plugin_class.stability is Stability.DEPRECATED:
            self.notice(path, f"plugin type '{type_name}' is deprecated")
        if plugin_class.stability is Stability.ALPHA and not self._allow_experimental:
            self.notice(path, f"plugin type '{type_name}' is experimental and may change")

    def _note_parameters(self, type_name: str, model: type[BaseModel], given: Any, path: KeyPath) -> None:
        """Say which of the parameters, nested ones too, have no effect, or have one no more."""
        if isinstance(given, list):
            for index, element in enumerate(given):
                self._note_parameters(type_name, model, element, (*path, index))
        if not isinstance(given, dict):
            return
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        for key, value in given.items():
            at: KeyPath = (*path, key)
            if key not in fields:
                self.notice(at, f"'{type_name}' has no such parameter; it is ignored")
                continue
            description = fields[key].description or ""
            if description.startswith(("Deprecated", "Ignored")):
                self.notice(at, description)
            for nested in models_in(fields[key].annotation):
                self._note_parameters(type_name, nested, value, at)
