"""The Envoy bootstraps we ship, and how a demonstration or a test fits one to its own ports and addresses.

A bootstrap is a YAML file that people read and use as it is. Here it is loaded and its named parts are replaced: the
listener and admin addresses, the clusters `picker` and `model_servers`, the `ext_proc` filter, the route `fail-open`,
and the parts by which the picker learns of the end of responses that it let go.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from epp.files import READABLE, write_atomically
from epp.units import parse_duration_s
from epp.wire.names import ACCESS_LOG

Bootstrap = dict[str, Any]

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_envoy", _PACKAGE.parent / "envoy")  # of an installed wheel, of a source tree
_UNIX = "unix:"
_FAIL_OPEN_ROUTE = "fail-open"
_PROMISE_FILTER = "envoy.filters.http.set_metadata"
_OBSERVATION_FILTERS = (_PROMISE_FILTER, "envoy.filters.http.sse_to_metadata")
_EDS_FILE_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def find_bootstrap(name: str) -> Path:
    """The file of the bootstrap that we ship as `name`: `recommended` or `gateway`."""
    for folder in _FOLDERS:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    raise FileNotFoundError(f"no Envoy bootstrap is called {name!r}; there are 'recommended' and 'gateway'")


def render_bootstrap(
    bootstrap: str | Path = "recommended",
    *,
    epp_address: str | Sequence[str],
    epp_tls: bool = True,
    endpoints: Sequence[str] = (),
    eds_path: Path | None = None,
    fail_open: bool = True,
    listener_port: int = 0,
    admin_port: int = 0,
    host: str = "127.0.0.1",
    ext_proc: Mapping[str, Any] | None = None,
    observation: bool = True,
    report_interval: str | None = None,
) -> Bootstrap:
    """A bootstrap with its named parts replaced, as the dict that Envoy's JSON is.

    Args:
        bootstrap: the name of one that we ship, or the path of a file with the same named parts.
        epp_address: `host:port` of the picker, or `unix:` and the path of its socket; or of several.
        epp_tls: whether the picker serves TLS; False takes the transport socket out of its cluster.
        endpoints: `host:port` of the model servers. Ignored where the cluster goes to whatever address it is told.
        eds_path: when given, members are read from this file, and again whenever `write_eds` replaces it.
        fail_open: whether a request for which the picker gave no answer is served all the same.
        listener_port, admin_port: 0 lets the system choose; `EnvoyProxy` tells which it chose.
        host: where both listen.
        ext_proc: fields of the ext_proc filter to replace; `processing_mode` is merged, so it may be partial.
        observation: False leaves out what is marked so: the picker then watches responses to their end.
        report_interval: how often the access log reports on a request that runs, e.g. `500ms`; as the file has it.
    """
    path = bootstrap if isinstance(bootstrap, Path) else find_bootstrap(bootstrap)
    config: Bootstrap = yaml.safe_load(path.read_text())

    config["admin"]["address"] = _socket_address(host, admin_port)
    listener = config["static_resources"]["listeners"][0]
    listener["address"] = _socket_address(host, listener_port)
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    filter_config = _named(manager["http_filters"], "envoy.filters.http.ext_proc")["typed_config"]
    _patch_ext_proc(filter_config, ext_proc or {})
    _patch_fail_open(manager["route_config"], filter_config, fail_open)
    if not observation:
        _drop_observation(manager)
    elif report_interval is not None:
        _patch_report_interval(manager, report_interval)

    clusters = config["static_resources"]["clusters"]
    addresses = [epp_address] if isinstance(epp_address, str) else epp_address
    _patch_picker(_named(clusters, "picker"), addresses, epp_tls)
    _patch_members(_named(clusters, "model_servers"), endpoints, eds_path)
    return config


def write_eds(path: Path, endpoints: Sequence[str]) -> None:
    """Replace, in one step, the file from which a cluster rendered with `eds_path` reads its members."""
    resource = {"@type": _EDS_FILE_TYPE, **_load_assignment("model_servers", endpoints)}
    write_atomically(path, json.dumps({"resources": [resource]}).encode(), READABLE)


# --- the named parts ----------------------------------------------------------------------------------------------


def _patch_ext_proc(filter_config: dict[str, Any], replaced: Mapping[str, Any]) -> None:
    mode = {**filter_config["processing_mode"], **replaced.get("processing_mode", {})}
    filter_config.update(replaced)
    filter_config["processing_mode"] = mode


def _patch_fail_open(route_config: dict[str, Any], filter_config: dict[str, Any], fail_open: bool) -> None:
    """Where a route is made for failing open, its presence is the switch; elsewhere the filter's own setting is."""
    hosts = route_config["virtual_hosts"]
    if not any(route.get("name") == _FAIL_OPEN_ROUTE for route in _routes(hosts)):
        filter_config["failure_mode_allow"] = fail_open
    elif not fail_open:
        for host in hosts:
            host["routes"] = [route for route in host["routes"] if route.get("name") != _FAIL_OPEN_ROUTE]


def _routes(hosts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for host in hosts:
        yield from host["routes"]


def _drop_observation(manager: dict[str, Any]) -> None:
    manager.pop("access_log", None)
    manager.pop("access_log_options", None)
    manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] not in _OBSERVATION_FILTERS]


def _patch_report_interval(manager: dict[str, Any], interval: str) -> None:
    """What is done and what is promised must be the same."""
    manager["access_log_options"]["access_log_flush_interval"] = f"{parse_duration_s(interval):g}s"
    (promise,) = _named(manager["http_filters"], _PROMISE_FILTER)["typed_config"]["metadata"]
    promise["value"] = {ACCESS_LOG: interval}


def _patch_picker(cluster: dict[str, Any], addresses: Sequence[str], tls: bool) -> None:
    cluster["load_assignment"] = _load_assignment("picker", addresses)
    if any(address.startswith(_UNIX) for address in addresses):
        cluster["type"] = "STATIC"  # there is no name to look up
    if not tls:
        cluster.pop("transport_socket", None)


def _patch_members(cluster: dict[str, Any], endpoints: Sequence[str], eds_path: Path | None) -> None:
    if cluster["type"] == "ORIGINAL_DST":
        return
    if eds_path is None:
        cluster["load_assignment"] = _load_assignment("model_servers", endpoints)
        return
    del cluster["load_assignment"]
    cluster["type"] = "EDS"
    source = {"path": str(eds_path), "watched_directory": {"path": str(eds_path.parent)}}
    cluster["eds_cluster_config"] = {"eds_config": {"path_config_source": source}}


def _load_assignment(cluster: str, addresses: Sequence[str]) -> dict[str, Any]:
    members = [{"endpoint": {"address": _address(address)}} for address in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": members}]}


def _address(address: str) -> dict[str, Any]:
    if address.startswith(_UNIX):
        return {"pipe": {"path": address.removeprefix(_UNIX)}}
    return _socket_address(*_split(address))


def _socket_address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for item in items:
        if item.get("name") == name:
            return item
    raise ValueError(f"the bootstrap has no part named {name!r}")
