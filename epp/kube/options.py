"""What can be told about Kubernetes: which pods are the pool, and who of several pickers leads."""

import re
from dataclasses import dataclass

from epp.kube.resources import POOL_GROUP
from epp.kube.selector import Selector
from epp.pool.address import shown
from epp.problem import Problem

# What a name may be to Kubernetes; a namespace's has no dots.
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_TARGET_PORTS = 8  # as the InferencePool API bounds it


@dataclass(frozen=True, slots=True)
class PoolByName:
    """The pods that an InferencePool selects."""

    name: str
    group: str = POOL_GROUP


@dataclass(frozen=True, slots=True)
class PodsBySelector:
    """The pods that a label selector matches, without an InferencePool.

    Attributes:
        name: what the pool is called in metrics and in the name of the Lease.
        target_ports: 1 to 8 of them; each is one endpoint of every pod.
    """

    name: str
    selector: Selector
    target_ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """
    Attributes:
        duration_s: whole seconds after which others may take a Lease that was not renewed.
        retry_s: between two renewals by the leader, and two looks by the others.
    """

    duration_s: int = 3
    retry_s: float = 1.0


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """
    Attributes:
        namespace: of the pool, its pods, objectives and rewrites, and of the Lease.
        kubeconfig: a file; `None` is what the pod is given, or else `$KUBECONFIG` or `~/.kube/config`.
        max_snapshot_age_s: with the API server silent for longer, requests are refused; `None` is never.
        leader_election: `None` is off.
        metrics_auth: the API server says who may read the metrics port.
        identity: who we are in the Lease; no two pickers may have the same.
    """

    source: PoolByName | PodsBySelector
    namespace: str = "default"
    kubeconfig: str | None = None
    max_snapshot_age_s: float | None = None
    leader_election: LeaseTimings | None = None
    metrics_auth: bool = False
    identity: str = ""

    @property
    def pool_name(self) -> str:
        return self.source.name

    @property
    def lease_name(self) -> str:
        """As llm-d names it."""
        return f"epp-{self.namespace}-{self.pool_name}.llm-d.ai"

    def check(self) -> None:
        """Raises `Problem`: nothing in Kubernetes can be called so. Names become parts of paths that are asked for."""
        advice = "give small letters, digits and dashes"
        if not _NAMESPACE.fullmatch(self.namespace):
            raise Problem(f"--pool-namespace (or $NAMESPACE) {shown(self.namespace)}: is no name; {advice}")
        if isinstance(self.source, PoolByName) and not _NAME.fullmatch(self.source.name):
            raise Problem(f"--pool-name {shown(self.source.name)}: is no name of an InferencePool; {advice}")
