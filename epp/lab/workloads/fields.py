"""Fields of a recorded trace, by name: read as what they have to be, or refused with their name in the message.

In a CSV every field is text, so text that says a number is one everywhere. All raise ValueError, and KeyError where a
field is not there that has to be.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

import orjson
from xxhash import xxh3_64_intdigest

MOST_TOKENS: Final = 10_000_000
"""Of a prompt or an answer: beyond any context. Prompts become real bytes, so a slip could take all memory."""

_MOST_SECONDS = 1e15  # either way: beyond any clock's nanoseconds; differences of such times are finite
_BLOCK_BITS = 63
_SHOWN = 40  # characters of a value that is refused


def whole(row: Mapping[str, Any], name: str, *, least: int, most: int | None, unit: str = "") -> int:
    """A whole number of a field that has to be there."""
    value = number(row, name)
    found = int(value)
    if found != value:
        raise wrong(name, row[name], "is not a whole number")
    if found < least or (most is not None and found > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise wrong(name, row[name], f"is out of bounds: {bounds}{unit} make sense")
    return found


def tokens(row: Mapping[str, Any], name: str) -> int:
    """A length; 0 counts as 1."""
    return max(1, whole(row, name, least=0, most=MOST_TOKENS, unit=" tokens"))


def number(row: Mapping[str, Any], name: str) -> int | float:
    """A finite number of a field that has to be there."""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong(name, value, "is not a number")
    if isinstance(value, int):
        return value
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise wrong(name, value, "is not a finite number")
    return found


def seconds(row: Mapping[str, Any], name: str, per_second: float) -> float:
    """A time, of which there are so many in a second."""
    at_s = number(row, name) / per_second
    if abs(at_s) > _MOST_SECONDS:
        raise wrong(name, row[name], "is no time")
    return at_s


def target_ms(row: Mapping[str, Any], name: str) -> float | None:
    if row.get(name) is None:
        return None
    found = float(number(row, name))
    if found <= 0.0:
        raise wrong(name, row[name], "ms is no target; it has to be above 0, or null")
    return found


def block_numbers(row: Mapping[str, Any], name: str, line: str) -> list[int]:
    """Of hashes, which may be any integers: numbers of 63 bits, equal for equal ones, the same below 2^63.

    Args:
        line: that `row` was read from. The reader makes floats of integers beyond 64 bits, which are then read again.
    """
    hashes = row.get(name, [])
    if isinstance(hashes, list) and any(isinstance(value, float) for value in hashes):
        hashes = json.loads(line)[name]
    if not isinstance(hashes, list):
        raise wrong(name, hashes, "is not a list of integers")
    for value in hashes:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value % 1:
            raise wrong(name, value, "is in its list, and is not an integer")
    return [_block_number(int(value)) for value in hashes]


def _block_number(value: int) -> int:
    if 0 <= value < 1 << _BLOCK_BITS:
        return value
    return xxh3_64_intdigest(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)) >> 1


def wrong(name: str, value: Any, why: str) -> ValueError:
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = repr(value)
    return ValueError(f"{name} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'} {why}")
