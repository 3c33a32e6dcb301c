"""What the picker does at the API server, rule by rule. Roles are written from this, and nothing else is done.

Reads are list and watch; single objects are read for the Lease alone. Writes are the Lease alone.
"""

from dataclasses import dataclass
from enum import StrEnum

from epp.kube.resources import (
    ACCESS_REVIEWS,
    LEASES,
    OBJECTIVES,
    PODS,
    POOL_GROUP,
    POOLS,
    REWRITES,
    TOKEN_REVIEWS,
    Resource,
)


class When(StrEnum):
    """What has to be switched on for a permission to be used."""

    DISCOVERY = "discovery"  # --pool-name or --endpoint-selector
    POOL = "pool"  # --pool-name
    LEADER_ELECTION = "leader-election"  # --ha-enable-leader-election
    METRICS_AUTH = "metrics-auth"  # --metrics-endpoint-auth


@dataclass(frozen=True, slots=True)
class Permission:
    """One rule of RBAC.

    Attributes:
        when: used with this switched on, and not otherwise.
        cluster_wide: belongs into a ClusterRole; else into a Role of the pool's namespace.
    """

    resource: Resource
    verbs: tuple[str, ...]
    when: When
    cluster_wide: bool = False


_READ = ("list", "watch")


def permissions(pool_group: str = POOL_GROUP) -> tuple[Permission, ...]:
    """Everything that the code can do. `pool_group`: as `--pool-group`; other groups' pools are never read."""
    return (
        Permission(PODS, _READ, When.DISCOVERY),
        Permission(POOLS[pool_group], _READ, When.POOL),
        *(Permission(resource, _READ, When.POOL) for resource in (*OBJECTIVES, *REWRITES)),
        Permission(LEASES, ("get", "create", "update"), When.LEADER_ELECTION),
        Permission(TOKEN_REVIEWS, ("create",), When.METRICS_AUTH, cluster_wide=True),
        Permission(ACCESS_REVIEWS, ("create",), When.METRICS_AUTH, cluster_wide=True),
    )
