"""Applies a header mutation as Envoy does."""

import re

from envoy_data_plane.envoy.config.core.v3 import HeaderValueOption, HeaderValueOptionHeaderAppendAction
from envoy_data_plane.envoy.service.ext_proc.v3 import HeaderMutation

from epp.conformance.broken import RuleBroken
from epp.conformance.http import Pairs

_Action = HeaderValueOptionHeaderAppendAction
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
# Envoy leaves these alone unless its mutation_rules say otherwise, and counts the attempt.
_PROTECTED = re.compile(r":(?!path$|status$).*|host|x-envoy-.*")


def value_of(option: HeaderValueOption) -> str:
    """Its text: `raw_value` if there is any, else `value`."""
    header = option.header
    if header is None:
        return ""
    return header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value


def action_of(option: HeaderValueOption) -> HeaderValueOptionHeaderAppendAction:
    """What Envoy does with an option. One that says nothing overwrites, though Envoy's API documents an append."""
    if option.append is not None:
        return _Action.APPEND_IF_EXISTS_OR_ADD if option.append else _Action.OVERWRITE_IF_EXISTS_OR_ADD
    if option.append_action == _Action.APPEND_IF_EXISTS_OR_ADD:
        return _Action.OVERWRITE_IF_EXISTS_OR_ADD
    return option.append_action


def apply(pairs: Pairs, mutation: HeaderMutation) -> tuple[Pairs, list[str]]:
    """The headers after a mutation, and what Envoy forgives in it. Raises `RuleBroken` for what it does not."""
    after, lapses = list(pairs), []
    for name in map(str.lower, mutation.remove_headers):
        if _PROTECTED.fullmatch(name) or name.startswith(":"):
            lapses.append(f"Removing {name!r}: Envoy leaves it and counts a rejected mutation.")
        else:
            after = [(key, value) for key, value in after if key != name]
    for option in mutation.set_headers:
        name = option.header.key.lower() if option.header is not None else ""
        value = value_of(option)
        if not _NAME.fullmatch(name.removeprefix(":")):
            raise RuleBroken(f"A mutation sets {name!r}, which is no header name.")
        if any(character in value for character in "\r\n\0"):
            raise RuleBroken(f"A mutation sets {name!r} to a value with a line end or NUL in it.")
        if _PROTECTED.fullmatch(name):
            lapses.append(f"Setting {name!r}: Envoy ignores it and counts a rejected mutation.")
            continue
        exists = any(key == name for key, _ in after)
        match action_of(option):
            case _Action.ADD_IF_ABSENT if exists:
                continue
            case _Action.OVERWRITE_IF_EXISTS if not exists:
                continue
            case _Action.OVERWRITE_IF_EXISTS | _Action.OVERWRITE_IF_EXISTS_OR_ADD:
                after = [(key, old) for key, old in after if key != name]
        after.append((name, value))
    return after, lapses
