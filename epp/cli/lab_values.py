"""What may be written after the flags of `epp lab`."""

import argparse

from epp.cli.flags import number, positive

_MOST_SEEDS = 1_000
_MOST_SIGMA = 1.0  # where one step in twenty takes more than five times as long as the median


def utf8(text: str) -> str:
    """What results will name, and they are written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def names(text: str) -> tuple[str, ...]:
    """Each once."""
    found = tuple(dict.fromkeys(name.strip() for name in utf8(text).split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError("names nothing")
    return found


def seeds(text: str) -> int:
    value = positive(text)
    if value > _MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_MOST_SEEDS}")
    return value


def above_zero(text: str) -> float:
    value = number(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def sigma(text: str) -> float:
    value = number(text)
    if not 0.0 <= value <= _MOST_SIGMA:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MOST_SIGMA:g}")
    return value


def loads(text: str) -> tuple[float, ...]:
    """Each once: what is run again would count as a further seed."""
    return tuple(dict.fromkeys(above_zero(part) for part in text.split(",")))


def seconds(text: str) -> float:
    from epp.units import parse_duration_s

    try:
        value = parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def interval(text: str) -> tuple[float, float] | None:
    from epp.lab.spec import parse_metrics_interval

    try:
        return parse_metrics_interval(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
