"""What is read of servers' metrics pages, until the picker looks at the pool.

Between two looks a page is read many times, and only the last reading counts. So a reading is noted as it is, which
costs little, and the pool is told of it when somebody looks, or when the pool changes.
"""

from epp.lab.servers import Server
from epp.pool.snapshot import EndpointSignals, Snapshot
from epp.pool.store import PoolStore

_Page = tuple[Server, float, int, int, float]
"""Whose, when it was read, and what it said: running, waiting, share of the KV cache in use."""


class MetricsPages:
    """Those of one pool."""

    def __init__(self, store: PoolStore) -> None:
        self._store = store
        self._read: dict[str, _Page] = {}  # and not told of yet, by endpoint id

    def read(self, server: Server, now_s: float) -> None:
        self._read[server.endpoint.id] = (server, now_s, *server.engine.gauges())

    def snapshot(self) -> Snapshot:
        """The pool, and what its pages said last."""
        self.tell()
        return self._store.snapshot()

    def tell(self) -> None:
        """Tell the pool what was read, before somebody leaves it, or comes back under the same name."""
        for endpoint_id, (server, at_s, running, waiting, kv_usage_ratio) in self._read.items():
            signals = EndpointSignals(
                waiting_requests=float(waiting),
                running_requests=float(running),
                kv_cache_usage_ratio=kv_usage_ratio,
                kv_block_size_tokens=server.spec.engine.block_tokens,
                kv_blocks=server.spec.engine.kv_blocks,
                scraped_at_s=at_s,
                restarts=server.restarts,
            )
            self._store.update_signals(endpoint_id, signals)
        self._read.clear()
