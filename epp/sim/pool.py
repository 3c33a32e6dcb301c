"""Several simulated servers in one process, each on a port of its own."""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from epp.sim.config import SimConfig
from epp.sim.server import SimServer


class SimPool:
    """The servers of `configs`, serving while its async `with` block lasts."""

    def __init__(self, configs: Iterable[SimConfig]) -> None:
        self.servers = tuple(SimServer(config) for config in configs)
        self._stack = AsyncExitStack()

    @classmethod
    def of(cls, size: int, config: SimConfig | None = None) -> "SimPool":
        """`size` servers alike but for their names (`sim-0`, …), free ports and seeds."""
        base = config or SimConfig()
        return cls(replace(base, name=f"sim-{i}", port=0, seed=base.seed + i) for i in range(size))

    @property
    def addresses(self) -> tuple[str, ...]:
        """`host:port` of each server, once they serve."""
        return tuple(server.address for server in self.servers)

    async def __aenter__(self) -> "SimPool":
        async with AsyncExitStack() as stack:
            for server in self.servers:
                await stack.enter_async_context(server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
