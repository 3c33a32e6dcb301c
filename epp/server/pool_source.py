"""Where the pool comes from: the command line, a discovery plugin of the configuration, or an API server."""

import logging
import random
from ipaddress import ip_address

from epp.kube.access import load_access
from epp.kube.options import PoolByName
from epp.plugins.file_discovery import FileDiscovery as FileDiscoveryPlugin
from epp.pool.file import FileDiscovery
from epp.pool.static import parse_endpoints
from epp.pool.store import EndpointChanges, PoolStore
from epp.problem import Problem
from epp.scheduling.plugin import Discovery
from epp.server.kubernetes import Kubernetes
from epp.server.state import PickerState

logger = logging.getLogger(__name__)


def open_source(state: PickerState, rng: random.Random) -> FileDiscovery | Kubernetes | None:
    """Fill the state's store for the first time, if that can be done at once; returns what keeps it true.

    `None`: it is what it is. Kubernetes fills it once it runs; an API server that is down is no reason not to start.

    Raises:
        Problem: nothing says what the pool is, or two things do, or what does cannot be read.
    """
    state.store.subscribe(_warn_of_host_names)
    kube, plugin = state.options.kube, state.config.discovery
    if kube is None:
        return _fill(state.store, state.options.endpoints, plugin)
    if plugin is None:
        return Kubernetes(kube, state, rng, lambda: load_access(kube.kubeconfig))
    if not isinstance(kube.source, PoolByName):
        raise _both("--endpoint-selector", plugin)
    for flag, given in (
        ("--ha-enable-leader-election", kube.leader_election is not None),
        ("--metrics-endpoint-auth", kube.metrics_auth),
    ):
        if given:
            raise Problem(f"{flag} is for pools from Kubernetes, but {plugin.name} says what the pool is: remove one")
    return _fill(state.store, None, plugin)  # the name of the pool is a label then


def _fill(store: PoolStore, endpoints: str | None, plugin: Discovery | None) -> FileDiscovery | None:
    if endpoints is not None:
        if plugin is not None:
            raise _both("--endpoints", plugin)
        store.replace(parse_endpoints(endpoints))
        return None
    if not isinstance(plugin, FileDiscoveryPlugin):
        raise Problem(
            "no model servers: give --endpoints HOST:PORT,…, --pool-name or --endpoint-selector for those of "
            "Kubernetes, or a file-discovery plugin named by dataLayer.discovery.pluginRef in the configuration"
        )
    return _follow(plugin, store)


def read_endpoints_file(plugin: Discovery | None) -> int | None:
    """How many endpoints there are in the file that a file-discovery names; `None`: it is none. Raises `Problem`."""
    if not isinstance(plugin, FileDiscoveryPlugin):
        return None
    store = PoolStore()
    _follow(plugin, store)
    return len(store.snapshot())


def _follow(plugin: FileDiscoveryPlugin, store: PoolStore) -> FileDiscovery:
    discovery = FileDiscovery(plugin.parameters.path, plugin.parameters.watch_file, store)
    discovery.load()
    return discovery


def _both(flag: str, plugin: Discovery) -> Problem:
    return Problem(
        f"{flag} and the configuration's dataLayer.discovery ({plugin.name}) both say what the pool is; "
        "remove one of them"
    )


def _warn_of_host_names(changes: EndpointChanges) -> None:
    for endpoint in (*changes.added, *(after for _, after in changes.changed)):
        try:
            ip_address(endpoint.host)
        except ValueError:
            logger.warning(
                "endpoint %s: %s is a host name; Envoy follows a choice only to IP addresses: list its address",
                endpoint.id,
                endpoint.host,
            )
