"""Who of several pickers leads, by a Lease. The state machine; it does no I/O.

Whoever leads writes its name and the time into the Lease again and again. The others look at it again and again, and
take it when it has not changed for as long as it says. That is measured on their own clock, from when they saw it
change, so no two clocks need to agree. Of two who write at once the API server lets one win: each names the version
that it read.

Leading decides who is ready, and thereby who gets requests; nobody is locked out, and two pickers that both think they
lead cost some prefix hits. Therefore a leader that cannot reach the API server goes on: when it is the API server that
is gone, nobody could take over, and to step down would leave no picker ready at all. It steps down when it sees another
name in the Lease.
"""

from dataclasses import dataclass

from epp.kube.objects import Json, mapping, text, whole
from epp.kube.options import LeaseTimings


@dataclass(frozen=True, slots=True)
class Lease:
    """What of a Lease matters. `holder` is empty when it was given back."""

    holder: str
    duration_s: int
    renewed: str
    acquired: str
    transitions: int
    version: str


def read_lease(obj: Json) -> Lease:
    spec = mapping(obj, "spec")
    return Lease(
        holder=text(spec.get("holderIdentity")),
        duration_s=whole(spec.get("leaseDurationSeconds")) or 0,
        renewed=text(spec.get("renewTime")),
        acquired=text(spec.get("acquireTime")),
        transitions=whole(spec.get("leaseTransitions")) or 0,
        version=text(mapping(obj, "metadata").get("resourceVersion")),
    )


class Election:
    """
    Attributes:
        is_leader: by the Lease as it was read or written last.
        leader: its holder's name; `None` is nobody, as far as we know.
    """

    def __init__(self, identity: str, timings: LeaseTimings) -> None:
        self._identity = identity
        self._timings = timings
        self._lease: Lease | None = None
        self._changed_s = 0.0
        self.is_leader = False

    @property
    def leader(self) -> str | None:
        return None if self._lease is None else self._lease.holder or None

    def saw(self, lease: Lease | None, now_s: float) -> None:
        """This is the Lease; `None`: there is none."""
        if lease != self._lease:
            self._changed_s = now_s
        self._lease = lease
        self.is_leader = lease is not None and lease.holder == self._identity

    def may_take(self, now_s: float) -> bool:
        """Ours, nobody's, or not renewed for as long as it says."""
        lease = self._lease
        return lease is None or lease.holder in ("", self._identity) or now_s >= self._expires_s(lease)

    def wait_s(self, now_s: float) -> float:
        """Until there is something to do: to renew, or to look whether the other renewed or its time is up."""
        if self.is_leader or self._lease is None or not self._lease.holder:
            return self._timings.retry_s
        return max(0.0, min(self._timings.retry_s, self._expires_s(self._lease) - now_s))

    def ours(self, wall_time: str) -> dict[str, object]:
        """The `spec` that makes or keeps the Lease ours. `wall_time`: RFC 3339; for people, nobody compares it."""
        lease = self._lease
        spec: dict[str, object] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timings.duration_s,
            "renewTime": wall_time,
        }
        if lease is not None and lease.holder == self._identity:
            return {**spec, "acquireTime": lease.acquired or wall_time, "leaseTransitions": lease.transitions}
        return {**spec, "acquireTime": wall_time, "leaseTransitions": 0 if lease is None else lease.transitions + 1}

    def given_back(self, wall_time: str) -> dict[str, object]:
        """The `spec` that lets anybody take the Lease at once."""
        transitions = 0 if self._lease is None else self._lease.transitions
        return {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": wall_time,
            "renewTime": wall_time,
            "leaseTransitions": transitions,
        }

    @property
    def version(self) -> str | None:
        """Of the Lease that was read or written last; `None`: there was none."""
        return None if self._lease is None else self._lease.version

    def _expires_s(self, lease: Lease) -> float:
        return self._changed_s + (lease.duration_s or self._timings.duration_s)
