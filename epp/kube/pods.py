"""What of a pod matters to routing, and the endpoints that it is.

A pod serves when it is Ready, has an address and is not on its way out. It is then one endpoint for each of the pool's
target ports, called `<pod>-rank-<i>` after the port's place in the pool's list; an annotation may leave ports out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epp.kube.objects import Json, is_being_deleted, items, mapping, name_of, text, texts, uid_of
from epp.pool.address import canonical_host, canonical_port
from epp.pool.endpoint import Endpoint

# Which of the pool's ports a pod serves, comma-separated. The first that is there counts.
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")


@dataclass(frozen=True, slots=True)
class PodFacts:
    """
    Attributes:
        host: canonical address; `None` while it has none.
        serves: Ready and not being deleted.
        active_ports: the ports it serves; `None` is all of the pool's.
    """

    namespace: str
    name: str
    uid: str
    host: str | None
    serves: bool
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    active_ports: frozenset[int] | None = None

    def endpoints(self, target_ports: Sequence[int]) -> tuple[Endpoint, ...]:
        if not self.serves or self.host is None:
            return ()
        return tuple(
            Endpoint(self.namespace, f"{self.name}-rank-{rank}", self.host, port, self.labels)
            for rank, port in enumerate(target_ports)
            if self.active_ports is None or port in self.active_ports
        )


def read_pod(pod: Json) -> PodFacts:
    """Never raises: what makes no sense is as if it were not there."""
    metadata, status = mapping(pod, "metadata"), mapping(pod, "status")
    return PodFacts(
        namespace=text(metadata.get("namespace")),
        name=name_of(pod),
        uid=uid_of(pod),
        host=_host(text(status.get("podIP"))),
        serves=_is_ready(status) and not is_being_deleted(pod),
        labels=texts(metadata.get("labels")),
        active_ports=_active_ports(texts(metadata.get("annotations"))),
    )


def _is_ready(status: Json) -> bool:
    if status.get("phase") in ("Failed", "Succeeded"):  # an evicted pod may keep its conditions
        return False
    ready = next((c for c in items(status.get("conditions")) if mapping(c).get("type") == "Ready"), None)
    return mapping(ready).get("status") == "True"


def _host(address: str) -> str | None:
    try:
        return canonical_host(address) if address else None
    except ValueError:
        return None


def _active_ports(annotations: Mapping[str, str]) -> frozenset[int] | None:
    listed = next((annotations[key] for key in ACTIVE_PORTS if key in annotations), None)
    if listed is None:
        return None
    ports = set()
    for entry in listed.split(","):
        try:
            ports.add(canonical_port(entry.strip()))
        except ValueError:
            continue
    return frozenset(ports)
