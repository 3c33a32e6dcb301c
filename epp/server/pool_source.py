"""Where the pool comes from: the command line, or a discovery plugin of the configuration."""

import logging
from ipaddress import ip_address

from epp.plugins.file_discovery import FileDiscovery as FileDiscoveryPlugin
from epp.pool.file import FileDiscovery
from epp.pool.static import parse_endpoints
from epp.pool.store import EndpointChanges, PoolStore
from epp.problem import Problem
from epp.scheduling.plugin import Discovery

logger = logging.getLogger(__name__)


def fill(store: PoolStore, endpoints: str | None, plugin: Discovery | None) -> FileDiscovery | None:
    """Fill `store` for the first time; returns what has to run to keep it true, if anything has to.

    Args:
        endpoints: `host:port,…` of the command line.
        plugin: the configuration's discovery.

    Raises:
        Problem: neither says what the pool is, or both do, or the one that does cannot be read.
    """
    store.subscribe(_warn_of_host_names)
    if endpoints is not None:
        if plugin is not None:
            raise Problem(
                f"--endpoints and the configuration's dataLayer.discovery ({plugin.name}) both say what the pool "
                "is; remove one of them"
            )
        store.replace(parse_endpoints(endpoints))
        return None
    if not isinstance(plugin, FileDiscoveryPlugin):
        raise Problem(
            "no model servers: give --endpoints HOST:PORT,… or a file-discovery plugin named by "
            "dataLayer.discovery.pluginRef in the configuration"
        )
    discovery = FileDiscovery(plugin.parameters.path, plugin.parameters.watch_file, store)
    discovery.load()
    return discovery


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
