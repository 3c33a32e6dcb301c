"""Keeps the servers whose label has one of some values. Deprecated: label-selector-filter says the same and more."""

from pydantic import Field

from epp.plugins._labels import LabelFilter
from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Parameters, Services, Stability


class ByLabelParameters(Parameters):
    label: str = Field(min_length=1, description="Label to look at.")
    valid_values: list[str] = Field(default_factory=list, description="Values to keep.")
    allows_no_label: bool = Field(False, description="Keep servers without the label too.")


class ByLabelFilter(LabelFilter):
    """Keeps a server whose `label` is one of `validValues`, and, with `allowsNoLabel`, one that lacks the label."""

    plugin_type = "by-label"
    stability = Stability.DEPRECATED
    parameters_model = ByLabelParameters

    def __init__(self, name: str, parameters: ByLabelParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._label = parameters.label
        self._values = frozenset(parameters.valid_values)
        self._allows_no_label = parameters.allows_no_label

    def keeps(self, endpoint: Endpoint) -> bool:
        value = endpoint.labels.get(self._label)
        return self._allows_no_label if value is None else value in self._values

    def drop_reason(self) -> str:
        return f"label {self._label} does not match"
