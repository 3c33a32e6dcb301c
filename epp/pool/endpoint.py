"""One model server address that requests can be sent to, as discovery knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

ROLE_LABEL = "llm-d.ai/role"

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with IPv6 literals bracketed: `[fd00::10]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, eq=True)
class Endpoint:
    """One address of one model server. Frozen; equality is by value, identity over time is `id`.

    A pod that serves several data-parallel ranks on several ports is several endpoints. An endpoint that comes back
    under the same `id` with another address or other labels is a new value with the same identity.

    Attributes:
        name: unique within `namespace`; with ranks it ends in `-rank-<i>`.
        host: IP literal (or a host name, where discovery allows it), never bracketed.
        port: 1–65535.
        labels: as the platform has them.
        metrics_host, metrics_port: where to scrape when that is not `host:port`; `None` means the same.
    """

    namespace: str
    name: str
    host: str
    port: int
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS, hash=False)
    metrics_host: str | None = None
    metrics_port: int | None = None

    @cached_property
    def id(self) -> str:
        """`namespace/name`: the identity that state is keyed by."""
        return f"{self.namespace}/{self.name}"

    @cached_property
    def address(self) -> str:
        """What goes into the destination header: `ip:port`, IPv6 bracketed."""
        return join_host_port(self.host, self.port)

    @cached_property
    def metrics_address(self) -> str:
        """`host:port` of the metrics page."""
        return join_host_port(self.metrics_host or self.host, self.metrics_port or self.port)

    @property
    def role(self) -> str | None:
        """Value of the role label (`prefill`, `decode`, …); `None` when unlabelled."""
        return self.labels.get(ROLE_LABEL)
