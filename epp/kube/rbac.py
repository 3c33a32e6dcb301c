"""The Role (and, if need be, ClusterRole) that a picker needs, as YAML: `python -m epp.kube.rbac --help`."""

import argparse
import sys
from collections.abc import Collection, Sequence
from typing import Any

import yaml

from epp.kube.permissions import Permission, When, permissions
from epp.kube.resources import POOL_GROUP, POOLS

DEFAULT_NAME = "headroom"


def rules(of: Sequence[Permission]) -> list[dict[str, list[str]]]:
    """Rules of a Role: one for each API group and set of verbs, in the order of the permissions."""
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for permission in of:
        plurals = merged.setdefault((permission.resource.group, permission.verbs), [])
        plurals.append(permission.resource.plural)
    return [
        {"apiGroups": [group], "resources": plurals, "verbs": list(verbs)} for (group, verbs), plurals in merged.items()
    ]


def manifests(name: str, namespace: str, switched_on: Collection[When], pool_group: str = POOL_GROUP) -> list[Any]:
    """A Role, and a ClusterRole if anything switched on needs one."""
    used = [permission for permission in permissions(pool_group) if permission.when in switched_on]
    roles: list[Any] = []
    local = [permission for permission in used if not permission.cluster_wide]
    if local:
        roles.append(_role("Role", {"name": name, "namespace": namespace}, local))
    cluster_wide = [permission for permission in used if permission.cluster_wide]
    if cluster_wide:
        roles.append(_role("ClusterRole", {"name": f"{namespace}-{name}"}, cluster_wide))
    return roles


def _role(kind: str, metadata: dict[str, str], used: Sequence[Permission]) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules(used)}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the roles."""
    parser = argparse.ArgumentParser(prog="python -m epp.kube.rbac", description=__doc__)
    parser.add_argument("--name", default=DEFAULT_NAME, help="of the Role (default %(default)s)")
    parser.add_argument("--namespace", default="default", help="the pool's (default %(default)s)")
    parser.add_argument(
        "--pool-group", choices=sorted(POOLS), default=POOL_GROUP, help="as epp serve has it (default %(default)s)"
    )
    parser.add_argument(
        "--for",
        dest="switched_on",
        nargs="+",
        choices=[str(when) for when in When],
        default=[str(When.DISCOVERY), str(When.POOL), str(When.LEADER_ELECTION)],
        help="what is switched on (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    switched_on = {When(text) for text in arguments.switched_on}
    roles = manifests(arguments.name, arguments.namespace, switched_on, arguments.pool_group)
    yaml.safe_dump_all(roles, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
