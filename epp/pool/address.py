"""Hosts and ports as people write them, turned into the one way in which the pool keeps them.

Two spellings of one address must compare equal, or a subset hint misses its endpoint: `[FD00:0::1]`, `fd00::1` and
`fd00:0:0:0:0:0:0:1` are one host, and so are `10.0.0.1` and its IPv4-mapped form `::ffff:10.0.0.1`.
"""

import re
from ipaddress import IPv6Address, ip_address

_HOST_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_HOST_NAME = 253


def canonical_host(text: str) -> str:
    """An IP literal in its shortest form, never bracketed and never IPv4-mapped, or a host name in lower case.

    Raises:
        ValueError: it is neither; the message is a clause that says why ("… is not an IP address or a host name").
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        ip = ip_address(bare)
    except ValueError:
        return _host_name(text)
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or ip)
    return str(ip)


def _host_name(text: str) -> str:
    name = text.removesuffix(".")
    labels = name.split(".")
    if len(name) > _MAX_HOST_NAME or not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{shown(text)} is not an IP address or a host name")
    if labels[-1].isdigit():
        raise ValueError(f"{shown(text)} is not an IPv4 address")
    return name.lower()


def canonical_port(value: str | int) -> int:
    """A port from 1 to 65535, written as a number or as its decimal digits.

    Raises:
        ValueError: it is not; the message is a clause that says so.
    """
    if isinstance(value, str):
        # int() alone would also take signs, underscores and blanks.
        port = int(value) if value.isascii() and value.isdigit() and len(value) <= 5 else 0
    else:
        port = value
    if not 1 <= port <= 65535:
        raise ValueError(f"{shown(value)} is not a port from 1 to 65535")
    return port


def split_host_port(text: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[v6]`, `[v6]:port` or bare `v6`, as canonical host and port; the port is `None` if absent.

    A bare IPv6 literal has no port: in `fd00::10:8000` the 8000 belongs to the address.

    Raises:
        ValueError: with a clause that says why.
    """
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{shown(text)} has unbalanced brackets")
        if ":" not in host:
            raise ValueError(f"{shown(text)} has brackets around something other than an IPv6 address")
        return canonical_host(host + bracket), canonical_port(rest[1:]) if rest else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return canonical_host(host), canonical_port(port)
    return canonical_host(text), None


def shown(value: object) -> str:
    """`value` as it may stand in a one-line message: quoted, escaped and cut to a sensible length.

    Of what may be huge only the beginning is looked at, and collections are only named: through YAML's aliases a page
    of text can stand for more than memory holds.
    """
    if isinstance(value, dict | list | tuple | set):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    text = repr(value[:100] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else text[:77] + "…"
