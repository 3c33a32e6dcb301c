"""An InferencePool of either API group, as the selector and the ports that it comes down to."""

from dataclasses import dataclass

from epp.kube.objects import Json, is_being_deleted, items, mapping, uid_of, whole
from epp.kube.options import MAX_TARGET_PORTS
from epp.kube.selector import Selector, is_label, match_labels


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """
    Attributes:
        selector: `None` when the pool selects by no label, or by one that no pod can have; without it the pool would
            have other pods than are meant, or every pod of the namespace.
        target_ports: in the pool's order, each once.
        being_deleted: it is on its way out and routes no more.
    """

    uid: str
    selector: Selector | None
    target_ports: tuple[int, ...]
    being_deleted: bool = False

    @property
    def fault(self) -> str | None:
        """Why nothing can be routed by this pool, in words."""
        if self.being_deleted:
            return "is being deleted"
        if self.selector is None:
            return "has no labels in spec.selector, or one that is none"
        return None if self.target_ports else "has no port in spec.targetPorts"


def read_pool(pool: Json) -> PoolFacts:
    """v1 has `selector.matchLabels` and `targetPorts`, v1alpha2 a bare map of labels and `targetPortNumber`."""
    spec = mapping(pool, "spec")
    selector = spec.get("selector")
    labels = mapping(mapping(selector).get("matchLabels")) or mapping(selector)
    numbers = [mapping(port).get("number") for port in items(spec.get("targetPorts"))]
    ports = [whole(number) for number in numbers or [spec.get("targetPortNumber")]]
    valid = dict.fromkeys(port for port in ports if port is not None and 1 <= port <= 65535)
    return PoolFacts(
        uid=uid_of(pool),
        selector=match_labels(labels) if labels and all(map(is_label, labels.keys(), labels.values())) else None,
        target_ports=tuple(valid)[:MAX_TARGET_PORTS],
        being_deleted=is_being_deleted(pool),
    )
