"""What all commands' flags have in common: how they are read, and what is said of a bad one."""

import argparse
from collections.abc import Callable
from math import nan
from typing import Any

from epp.problem import Problem
from epp.units import parse_duration_s, parse_size_bytes


class Parser(argparse.ArgumentParser):
    """Flags are never abbreviated, and a mistake is one line that says where to read more."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **kwargs)
        self.set_defaults(prog=self.prog)  # of a command in a command, its own: it is read last

    def error(self, message: str) -> Any:
        raise Problem(f"{self.prog}: {message} (see {self.prog} --help)")


def add_port(group: Any, flag: str, default: int, what: str) -> None:
    group.add_argument(
        flag, type=port, default=default, metavar="PORT", help=f"{what} (default {default}; 0: any free one)"
    )


def add_bool(group: Any, flag: str, default: bool, what: str) -> None:
    group.add_argument(
        flag,
        nargs="?",
        const=True,
        default=default,
        type=_boolean,
        metavar="true|false",
        help=f"{what} (default {str(default).lower()})",
    )


def add_size(group: Any, flag: str, default_bytes: int, what: str) -> None:
    group.add_argument(
        flag,
        type=size,
        default=default_bytes,
        metavar="SIZE",
        help=f"{what} (default {default_bytes // 2**20}Mi)",
    )


def add_duration(group: Any, flag: str, default_s: float, what: str) -> None:
    group.add_argument(
        flag,
        type=_checked(_duration),
        default=default_s,
        metavar="DURATION",
        help=f"{what} (default {_duration_text(default_s)})",
    )


def _duration(text: str) -> float:
    seconds = parse_duration_s(text)
    if seconds < 0:
        raise ValueError("must not be negative")
    return seconds


def _duration_text(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1e3:g}ms"


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse show the text of a ValueError instead of its own."""

    def parse_or_explain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_or_explain


def _boolean(text: str) -> bool:
    value = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}.get(text.lower())
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return value


def size(text: str) -> int:
    """A size in bytes: `32Mi`, `5M`, `1048576`."""
    return int(_checked(parse_size_bytes)(text))


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def number(text: str) -> float:
    """NaN, which lies between no two bounds, if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan


def ratio(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 1")
    return value


def port(text: str) -> int:
    """A TCP port; 0 is any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def parse_server_urls(text: str, flag: str) -> list[str]:
    """Base URLs, separated by commas, without a slash at the end. Raises `Problem`."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        scheme, separator, rest = url.partition("://")
        if scheme not in ("http", "https") or not separator or not rest or "/" in rest or "?" in rest:
            raise Problem(f"{flag}: {url} is not http://HOST:PORT")
    return urls
