"""Keeps the servers that a Kubernetes label selector matches."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from epp.plugins._labels import LabelFilter
from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Parameters, Services


class MatchExpression(Parameters):
    key: str = Field(min_length=1)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list, description="For In and NotIn only.")

    @model_validator(mode="after")
    def _has_values_where_they_mean_something(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"operator {self.operator} needs values")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None


class LabelSelectorParameters(Parameters):
    match_labels: dict[str, str] = Field(default_factory=dict, description="Labels that must have exactly this value.")
    match_expressions: list[MatchExpression] = Field(default_factory=list, description="Further conditions.")


class LabelSelectorFilter(LabelFilter):
    """Keeps a server when all of `matchLabels` and all of `matchExpressions` hold; an empty selector keeps all.

    As in Kubernetes, `NotIn` also holds where the label is absent.
    """

    plugin_type = "label-selector-filter"
    aliases = ("by-label-selector",)
    parameters_model = LabelSelectorParameters

    def __init__(self, name: str, parameters: LabelSelectorParameters, services: Services) -> None:
        super().__init__(name, parameters, services)
        self._match_labels = parameters.match_labels
        self._match_expressions = parameters.match_expressions

    def keeps(self, endpoint: Endpoint) -> bool:
        labels = endpoint.labels
        return all(labels.get(key) == value for key, value in self._match_labels.items()) and all(
            expression.matches(labels) for expression in self._match_expressions
        )

    def drop_reason(self) -> str:
        return "label selector does not match"
