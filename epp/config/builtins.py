"""Configurations that come with the picker, by name: what `epp serve --profile` offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """An EndpointPickerConfig as text, and what it does in one line."""

    about: str
    text: str


def _from_file(name: str, about: str) -> BuiltIn:
    path = files(__package__).joinpath("builtin", f"{name.replace('-', '_')}.yaml")
    return BuiltIn(about, path.read_text(encoding="utf-8"))


DEFAULT_BUILT_IN = "llm-d-default"

BUILT_INS: Mapping[str, BuiltIn] = MappingProxyType(
    {
        DEFAULT_BUILT_IN: _from_file(DEFAULT_BUILT_IN, "queue 2, KV cache 2, cached prefix 3, highest score wins"),
        "predicted-latency": _from_file(
            "predicted-latency", "the soonest by predicted TTFT and TPOT among those within the targets"
        ),
        "headroom": _from_file("headroom", "the cheapest in milliseconds and targets at stake, by learned speeds"),
    }
)
