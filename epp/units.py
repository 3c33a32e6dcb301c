"""Durations, quantities and byte sizes as Go and Kubernetes write them, in flags and in configuration files."""

import math
import re
from decimal import Decimal

_DURATION = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

_QUANTITY = re.compile(
    r"([-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))(?:([eE][-+]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_DECIMAL = zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
_FACTORS = {
    **{suffix: Decimal(10) ** power for suffix, power in _DECIMAL},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse_duration_s(value: object) -> float:
    """Seconds of a Go duration such as `1.5s`, `200ms` or `1h30m`.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError("must be a duration such as 200ms, 5s or 1m30s")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(value))
    if not math.isfinite(seconds):
        raise ValueError("must be a duration that is not beyond all numbers")
    return -seconds if value.startswith("-") else seconds


def parse_quantity(value: object) -> int:
    """Whole units, rounded up, of a Kubernetes quantity such as `500`, `1k` or `10Gi`.

    Raises:
        ValueError: it is none.
    """
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError("must be a quantity such as 500, 1k or 10Gi")
    number, exponent, suffix = match.groups()
    if exponent:
        return math.ceil(Decimal(number + exponent))
    return math.ceil(Decimal(number) * _FACTORS.get(suffix or "", Decimal(1)))


def parse_size_bytes(text: str) -> int:
    """Bytes of a quantity that may end in `B` or `b`: `10MiB`, `25MB`, `1048576`.

    Raises:
        ValueError: it is none, or negative.
    """
    size_bytes = parse_quantity(text[:-1] if text[-1:] in ("B", "b") else text)
    if size_bytes < 0:
        raise ValueError("must not be negative")
    return size_bytes
