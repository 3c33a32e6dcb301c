"""Why the API server did not do what it was asked to, and what a person can do about it."""

from collections.abc import Callable
from enum import StrEnum

from epp.kube.resources import POOLS, Resource


class Kind(StrEnum):
    UNREACHABLE = "unreachable"  # no answer, or one that broke off
    STALLED = "stalled"  # a watch that said nothing for longer than it may
    EXPIRED = "expired"  # 410: the resource version is too old
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not_found"  # 404: of a list: the kind is not installed
    CONFLICT = "conflict"  # 409: somebody was faster
    BUSY = "busy"  # 429, or one of the statuses of a server that cannot for now
    REFUSED = "refused"  # anything else


_BY_STATUS = {
    401: Kind.UNAUTHORIZED,
    403: Kind.FORBIDDEN,
    404: Kind.NOT_FOUND,
    409: Kind.CONFLICT,
    410: Kind.EXPIRED,
    **dict.fromkeys((429, 502, 503, 504), Kind.BUSY),
}


class ApiFailure(Exception):
    """`said`: the API server's own message, or the error of the connection."""

    def __init__(self, kind: Kind, said: str) -> None:
        super().__init__(f"{kind}: {said}")
        self.kind = kind
        self.said = said

    @staticmethod
    def of_status(status: int, said: str) -> "ApiFailure":
        return ApiFailure(_BY_STATUS.get(status, Kind.REFUSED), f"{said} ({status})")


def advice(failure: ApiFailure, verb: str, resource: Resource, namespace: str) -> str:
    """One line: what cannot be done, why, and the fix."""
    what = f"cannot {verb} {resource.name} in namespace {namespace}"
    match failure.kind:
        case Kind.FORBIDDEN:
            return (
                f"{what}: forbidden; grant the verb {verb} on the resource {resource.plural} of API group "
                f'"{resource.group}" in namespace {namespace} (python -m epp.kube.rbac prints the Role): {failure.said}'
            )
        case Kind.NOT_FOUND:
            fix = ", or name the group that is installed by --pool-group" if resource in POOLS.values() else ""
            return f"{what}: {resource.name}/{resource.version} is not installed; apply its CRD{fix}"
        case Kind.UNAUTHORIZED:
            return f"{what}: the API server does not accept our credentials; renew the token: {failure.said}"
        case Kind.UNREACHABLE:
            return f"{what}: the API server does not answer: {failure.said}"
        case _:
            return f"{what}: {failure.said}"


ErrorCounter = Callable[[str, str], None]
"""Called with the resource's plural and the kind of failure."""
