"""What plugins remember, kept alike in all workers: each tells the others what it comes to know.

Changes are sent at once when there is time, and together when there are many: at most one message a millisecond. So
what one worker learned is known to the others a millisecond or two later, and waking them up costs the same however
many requests there are.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from epp.observe.logs import OncePer
from epp.pool.snapshot import Snapshot
from epp.scheduling.plugin import Plugin, Replicated
from epp.server.workers.batches import Batch, Clockwork

logger = logging.getLogger(__name__)

PAUSE_S = 0.001
CHANGES_AT_ONCE = 16  # of what a newcomer is told: each may take a millisecond
LOG_INTERVAL_S = 60.0

Changes = list[tuple[int, Any]]
"""By the place of a plugin in the configuration, which is the same for all."""


class Replicas:
    """One worker's plugins.

    Args:
        send: to all other workers.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        send: Callable[[Changes], None],
        snapshot: Callable[[], Snapshot],
        time: Clockwork,
    ) -> None:
        self._plugins = {place: plugin for place, plugin in enumerate(plugins) if isinstance(plugin, Replicated)}
        self._snapshot = snapshot
        self._untold = Batch(send, PAUSE_S, time)
        self._loggable = OncePer(LOG_INTERVAL_S, time.clock)
        for place, plugin in self._plugins.items():
            plugin.tell = partial(self._tell, place)

    def absorb(self, changes: Changes, peer: int) -> None:
        """What another worker has told."""
        snapshot = self._snapshot()
        for place, change in changes:
            plugin = self._plugins[place]
            try:
                plugin.absorb(change, peer, snapshot)
            except Exception as error:  # a bug of this plugin's, and not to be the others' misfortune
                if self._loggable((plugin.name, type(error).__name__)):
                    logger.warning("plugin %s cannot take what another worker told", plugin.name, exc_info=error)

    def forget_peer(self, peer: int) -> None:
        for plugin in self._plugins.values():
            plugin.forget_peer(peer)

    async def teach(self, send: Callable[[Changes], None]) -> None:
        """Send all that is known, with time for requests in between."""
        changes: Changes = []
        for change in self._known():
            changes.append(change)
            if len(changes) >= CHANGES_AT_ONCE:
                send(changes)
                changes = []
                await asyncio.sleep(0)
        if changes:
            send(changes)

    def _known(self) -> Iterator[tuple[int, Any]]:
        for place, plugin in self._plugins.items():
            for change in plugin.known():
                yield place, change

    def _tell(self, place: int, change: Any) -> None:
        self._untold.add((place, change))
