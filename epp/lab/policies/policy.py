"""What a policy is."""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.scheduling.plugin import Plugin


@dataclass(frozen=True, slots=True)
class Policy:
    """
    Attributes:
        name: on the command line.
        about: one line.
        config_text: an EndpointPickerConfig.
        plugins: types that the configuration names beyond the picker's own.
        knows_hardware: whether it learns how fast each server is, so that unequal ones get unequal shares; `None`:
            nobody knows, as of a configuration of one's own.
    """

    name: str
    about: str
    config_text: str
    plugins: Sequence[type[Plugin]] = ()
    knows_hardware: bool | None = False


def picked_by(picker: type[Plugin], name: str, about: str) -> Policy:
    """A policy that is a picker alone."""
    config_text = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: {picker.plugin_type}
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: {picker.plugin_type}
"""
    return Policy(name, about, config_text, (picker,))
