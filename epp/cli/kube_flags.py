"""The flags of `epp serve` about Kubernetes, and the options that they and the pod's environment become."""

import argparse
import re
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from epp.cli.flags import add_bool, add_duration
from epp.kube.options import MAX_TARGET_PORTS, KubeOptions, LeaseTimings, PodsBySelector, PoolByName
from epp.kube.resources import POOL_GROUP, POOLS
from epp.kube.selector import parse_selector
from epp.pool.address import canonical_port
from epp.problem import Problem

# A quiet API server is heard once in a second at best.
SHORTEST_SNAPSHOT_AGE_S = 3
# A pod of a Deployment is called <deployment>-<hash of the template>-<random>.
_POD_OF_DEPLOYMENT = re.compile(r"(.+)-[a-z0-9]+-[a-z0-9]+")


def add_kube_flags(parser: Any) -> None:
    kube = parser.add_argument_group("Kubernetes")
    kube.add_argument(
        "--pool-namespace", metavar="NS", help="of the pool and its pods (default: $NAMESPACE, or default)"
    )
    kube.add_argument(
        "--pool-group",
        metavar="GROUP",
        default=POOL_GROUP,
        help=f"API group of the pool: {' or '.join(POOLS)} (default the first)",
    )
    kube.add_argument(
        "--endpoint-selector",
        metavar="SELECTOR",
        help="the model servers are the pods with these labels, without an InferencePool, e.g. app=vllm,tier in (a,b)",
    )
    kube.add_argument(
        "--endpoint-target-ports",
        metavar="PORT,…",
        action="append",
        help=f"with --endpoint-selector: the ports of every pod, {MAX_TARGET_PORTS} at most, each one endpoint",
    )
    kube.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server (default: as the pod it runs in, else $KUBECONFIG or ~/.kube/config)",
    )
    add_duration(
        kube,
        "--max-snapshot-age",
        0.0,
        "refuse requests when the API server was silent for so long, e.g. 15s; 0 is never: the pods last known stay",
    )
    add_bool(kube, "--ha-enable-leader-election", False, "of several pickers only the one that holds a Lease is ready")
    add_bool(
        kube,
        "--metrics-endpoint-auth",
        False,
        "the API server says who may read --metrics-port (TokenReview, SubjectAccessReview); probes are let in",
    )
    timings = LeaseTimings()
    add_duration(
        kube, "--ha-lease-duration", timings.duration_s, "a Lease not renewed for so long may be taken; whole seconds"
    )
    add_duration(kube, "--ha-retry-period", timings.retry_s, "between two renewals of the Lease, and two looks at it")


def kube_options(arguments: argparse.Namespace, environ: Mapping[str, str]) -> KubeOptions | None:
    """`None`: the pool does not come from Kubernetes. Raises `Problem`."""
    source = _source(arguments, environ)
    if source is None:
        if arguments.metrics_endpoint_auth:
            raise Problem("--metrics-endpoint-auth: give --pool-name or --endpoint-selector: it asks the API server")
        if arguments.ha_enable_leader_election:
            raise Problem(
                "--ha-enable-leader-election: give --pool-name or --endpoint-selector; the Lease is named after it"
            )
        return None
    longest_s = arguments.max_snapshot_age
    if 0 < longest_s < SHORTEST_SNAPSHOT_AGE_S:
        raise Problem(f"--max-snapshot-age {longest_s:g}s: give {SHORTEST_SNAPSHOT_AGE_S}s or more, or 0 for never")
    return KubeOptions(
        source=source,
        namespace=arguments.pool_namespace or environ.get("NAMESPACE") or "default",
        kubeconfig=arguments.kubeconfig,
        max_snapshot_age_s=longest_s or None,
        leader_election=_timings(arguments) if arguments.ha_enable_leader_election else None,
        metrics_auth=arguments.metrics_endpoint_auth,
        identity=f"{environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}",
    )


def _source(arguments: argparse.Namespace, environ: Mapping[str, str]) -> PoolByName | PodsBySelector | None:
    if arguments.endpoint_selector is None:
        if arguments.endpoint_target_ports:
            raise Problem(
                "--endpoint-target-ports: is for --endpoint-selector; an InferencePool names its ports itself"
            )
        if arguments.pool_name is None or arguments.endpoints is not None:
            return None
        if arguments.pool_group not in POOLS:
            raise Problem(f"--pool-group {arguments.pool_group}: there are {' and '.join(POOLS)}")
        return PoolByName(arguments.pool_name, arguments.pool_group)
    for other, flag in ((arguments.pool_name, "--pool-name"), (arguments.endpoints, "--endpoints")):
        if other is not None:
            raise Problem(f"--endpoint-selector and {flag} both say what the pool is; remove one of them")
    try:
        selector = parse_selector(arguments.endpoint_selector)
    except ValueError as error:
        raise Problem(f"--endpoint-selector: {error}") from error
    return PodsBySelector(_deployment(environ), selector, _ports(arguments.endpoint_target_ports or []))


def _ports(given: list[str]) -> tuple[int, ...]:
    try:
        ports = tuple(dict.fromkeys(canonical_port(port.strip()) for entry in given for port in entry.split(",")))
    except ValueError as error:
        raise Problem(f"--endpoint-target-ports: {error}") from error
    if not 1 <= len(ports) <= MAX_TARGET_PORTS:
        raise Problem(
            f"--endpoint-target-ports: --endpoint-selector needs 1 to {MAX_TARGET_PORTS} ports, not {len(ports)}"
        )
    return ports


def _deployment(environ: Mapping[str, str]) -> str:
    pod = environ.get("POD_NAME", "")
    found = _POD_OF_DEPLOYMENT.fullmatch(pod)
    if found is None:
        said = f"is {pod!r}, which is no pod of a Deployment" if pod else "is not set"
        raise Problem(
            f"--endpoint-selector: the pool is named after the Deployment of this pod, but $POD_NAME {said}; set it to "
            "the pod's name (fieldRef metadata.name)"
        )
    return found[1]


def _timings(arguments: argparse.Namespace) -> LeaseTimings:
    duration_s, retry_s = arguments.ha_lease_duration, arguments.ha_retry_period
    if duration_s < 1 or duration_s != int(duration_s):
        raise Problem(f"--ha-lease-duration {duration_s:g}s: a Lease counts whole seconds, 1 at least")
    if not 0 < retry_s <= duration_s / 2:
        raise Problem(f"--ha-retry-period {retry_s:g}s: must be above 0 and at most half of --ha-lease-duration")
    return LeaseTimings(int(duration_s), retry_s)
