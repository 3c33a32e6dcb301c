"""Durations and byte sizes as people write them in flags and configuration files."""

import re

_DURATION_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h)")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([a-zA-Z]{0,2})")
_QUANTITY_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_duration_s(text: str) -> float:
    """Seconds of a Go duration: `50ms`, `1m30s`, `0`. Raises ValueError with a text that shows the form."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    parts = _DURATION.findall(stripped)
    if not parts or "".join(parts) != stripped:
        raise ValueError(f"{text!r} is not a duration: write it like 50ms, 2s or 1m30s")
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in map(_split_duration, parts))


def _split_duration(part: str) -> tuple[str, str]:
    number = part.rstrip("nuµmsh")
    return number, part[len(number) :]


def parse_quantity(text: str) -> int:
    """A Kubernetes quantity as a whole number: `10Mi`, `1k`, `4194304`. Raises ValueError with a text that shows the form."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _QUANTITY_UNITS:
        raise ValueError(f"{text!r} is not a quantity: write it like 10Mi, 4k or 1048576")
    return (
        int(float(match[1]) * _QUANTITY_UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _QUANTITY_UNITS[match[2]]
    )


def parse_size_bytes(text: str) -> int:
    """A quantity that may end in `B` or `b`: `10MiB`, `25MB`, `1048576`."""
    stripped = text.strip()
    return parse_quantity(stripped[:-1] if stripped[-1:] in ("B", "b") else stripped)
