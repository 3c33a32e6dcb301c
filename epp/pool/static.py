"""Endpoints given by hand: `10.0.0.1:8000,[fd00::1]:8000,gpu-7.example:8000`."""

from epp.pool.address import shown, split_host_port
from epp.pool.endpoint import Endpoint
from epp.pool.errors import DiscoveryError

_EXAMPLE = "10.0.0.1:8000,[fd00::1]:8000"


def parse_endpoints(text: str, *, namespace: str = "default", source: str = "--endpoints") -> tuple[Endpoint, ...]:
    """The endpoints of a comma-separated list of `host:port`, in the order given.

    An endpoint's name follows from its address (`10.0.0.1-8000`, `fd00--1-8000`), so that it keeps its identity
    whatever else the list holds.

    Raises:
        DiscoveryError: an entry cannot be read or is there twice, or there is none.
    """
    if not text.strip():
        raise DiscoveryError(f"{source}: no endpoints given; write host:port, comma-separated, e.g. {_EXAMPLE}")
    endpoints: dict[str, Endpoint] = {}
    for number, entry in enumerate(text.split(","), start=1):
        where = f"{source}: entry {number}"
        endpoint = _parse_entry(entry.strip(), namespace, where)
        if endpoint.address in endpoints:
            raise DiscoveryError(f"{where}: {endpoint.address} is there twice; remove one of the two")
        endpoints[endpoint.address] = endpoint
    return tuple(endpoints.values())


def _parse_entry(entry: str, namespace: str, where: str) -> Endpoint:
    if not entry:
        raise DiscoveryError(f"{where} is empty; remove the extra comma")
    if "/" in entry:
        raise DiscoveryError(f"{where}: {shown(entry)} looks like a URL; write host:port only, without scheme or path")
    try:
        host, port = split_host_port(entry)
    except ValueError as error:
        raise DiscoveryError(f"{where}: {error}; write host:port, e.g. {_EXAMPLE}") from error
    if port is None:
        fix = f"[{host}]:8000" if ":" in host else f"{host}:8000"
        raise DiscoveryError(f"{where}: {shown(entry)} has no port; write e.g. {fix}")
    return Endpoint(namespace, f"{host.replace(':', '-')}-{port}", host, port)
