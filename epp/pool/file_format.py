"""llm-d's endpoints file: YAML or JSON that lists model servers.

    endpoints:
    - name: gpu-7
      namespace: default      # optional
      address: 10.0.0.7       # IPv4 or IPv6; a host name only where the proxy looks names up (Envoy does not)
      port: 8000              # or "8000"
      labels:                 # optional
        llm-d.ai/role: decode

The labels `metricsAddress` and `metricsPort` say where to scrape when that is not the endpoint itself, as in llm-d's
multi-cluster discovery.

A fault of the whole file (syntax, size, shape) is an exception; a fault of one entry is a value, so that whoever
reloads the file can lose that entry alone.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from epp.pool.address import canonical_host, canonical_port, shown
from epp.pool.endpoint import Endpoint
from epp.pool.errors import DiscoveryError

MAX_FILE_BYTES = 1 << 20  # llm-d's limit

METRICS_ADDRESS_LABEL = "metricsAddress"
METRICS_PORT_LABEL = "metricsPort"

_KEYS = ("name", "namespace", "address", "port", "labels")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MAX_MEMBERS = 1_000_000  # of all mappings: merge keys copy what they merge, and a file may merge much often
_SafeLoader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

T = TypeVar("T")


class _Loader(_SafeLoader):  # type: ignore[misc, valid-type]
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self._members: int = getattr(self, "_members", 0) + len(node.value)
        if self._members > _MAX_MEMBERS:
            raise yaml.constructor.ConstructorError(None, None, "too many members", node.start_mark)


@dataclass(frozen=True, slots=True)
class BadEntry:
    """An entry that cannot be read: its id as far as that much is legible, and one line that names fault and fix."""

    id: str | None
    message: str


@dataclass(frozen=True, slots=True)
class EndpointsFile:
    """What a file says, in its order; the same id may be there more than once."""

    endpoints: tuple[Endpoint, ...]
    bad: tuple[BadEntry, ...]


def parse_endpoints_file(data: bytes, source: str) -> EndpointsFile:
    """Read the content of an endpoints file; `source` is what messages call it.

    Raises:
        DiscoveryError: the file as a whole cannot be read.
    """
    if len(data) > MAX_FILE_BYTES:
        raise DiscoveryError(f"{source}: larger than {MAX_FILE_BYTES} bytes; split the pool or drop labels")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DiscoveryError(f"{source}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    document, lines = _load(text, source)
    entries = _list_of_entries(document, source)
    endpoints: list[Endpoint] = []
    bad: list[BadEntry] = []
    for index, entry in enumerate(entries):
        line = f":{lines[index]}" if index < len(lines) else ""
        where = f"{source}{line}: endpoints[{index}]"
        try:
            endpoints.append(_endpoint(entry))
        except ValueError as error:
            bad.append(BadEntry(_legible_id(entry), f"{where}{error}"))
    return EndpointsFile(tuple(endpoints), tuple(bad))


def _load(text: str, source: str) -> tuple[object, list[int]]:
    """The document, and the lines (from 1) of the entries where they are known."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text), []  # also the JSON that is not YAML: indented with tabs
        except (ValueError, RecursionError):
            pass  # YAML's own flow style, or a fault to which YAML gives a line
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), _entry_lines(node)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DiscoveryError(f"{source}{line}: not valid YAML or JSON: {error.problem}; correct it there") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DiscoveryError(f"{source}: not valid YAML or JSON: {reason}") from error
    finally:
        loader.dispose()


def _entry_lines(node: yaml.Node | None) -> list[int]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == "endpoints" and isinstance(value, yaml.SequenceNode):
                return [entry.start_mark.line + 1 for entry in value.value]
    return []


def _list_of_entries(document: object, source: str) -> list[object]:
    if not isinstance(document, dict) or "endpoints" not in document:
        raise DiscoveryError(f"{source}: no key 'endpoints'; the file must be a mapping with a list under that key")
    for key in document:
        if key != "endpoints":
            raise DiscoveryError(f"{source}: unknown key {shown(key)}; the only key is 'endpoints'")
    entries = document["endpoints"]
    if not isinstance(entries, list):  # null too: a file half written, more likely than an empty pool
        raise DiscoveryError(f"{source}: endpoints: must be a list; write 'endpoints: []' for an empty pool")
    return entries


# From here on messages are what follows "endpoints[3]": ".port: … ; fix".


def _endpoint(entry: object) -> Endpoint:
    if not isinstance(entry, dict):
        raise ValueError(f": {shown(entry)} is not a mapping; write name, address and port")
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f": unknown key {shown(key)}; known are {', '.join(_KEYS)}")
    labels = _labels(entry.get("labels"))
    return Endpoint(
        namespace=_name(entry, "namespace", "default"),
        name=_name(entry, "name"),
        host=_read("address", canonical_host, _string(entry, "address")),
        port=_read("port", canonical_port, _port(entry)),
        labels=labels,
        metrics_host=_read_label(labels, METRICS_ADDRESS_LABEL, canonical_host),
        metrics_port=_read_label(labels, METRICS_PORT_LABEL, canonical_port),
    )


def _read(key: str, reader: Callable[[Any], T], value: object) -> T:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f".{key}: {error}; correct it") from error


def _read_label(labels: Mapping[str, str], key: str, reader: Callable[[str], T]) -> T | None:
    value = labels.get(key)
    return _read(f"labels.{key}", reader, value) if value else None


def _string(entry: Mapping[object, object], key: str) -> str:
    value = entry.get(key)
    if value is None or value == "":
        raise ValueError(f".{key}: missing; add it")
    if not isinstance(value, str):
        raise ValueError(f".{key}: {shown(value)} is not a string; put it in quotes")
    return value


def _name(entry: Mapping[object, object], key: str, default: str | None = None) -> str:
    if default is not None and entry.get(key) in (None, ""):
        return default
    value = _string(entry, key)
    if not _NAME.fullmatch(value):
        raise ValueError(f".{key}: {shown(value)} is not a name; use letters, digits, '-', '_' and '.'")
    return value


def _port(entry: Mapping[object, object]) -> str | int:
    value = entry.get("port")
    if value is None or value == "":
        raise ValueError(".port: missing; add it")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f".port: {shown(value)} is not a port; write a whole number from 1 to 65535")
    return value


def _labels(value: object) -> Mapping[str, str]:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ValueError(f".labels: {shown(value)} is not a mapping; write 'key: value' pairs")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise ValueError(f".labels: {shown(key)}: {shown(text)} is not a string; put it in quotes")
    return MappingProxyType(value)


def _legible_id(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return None
    try:
        return f"{_name(entry, 'namespace', 'default')}/{_name(entry, 'name')}"
    except ValueError:
        return None
