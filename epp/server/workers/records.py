"""Records of Envoy's access log that came to another worker than the one that waits for them.

Envoy keeps a stream of its own for them, on whichever connection it likes. The name of a request tells whose it is:
its tag ends in the worker's number.
"""

from collections.abc import Callable
from typing import Any

from epp.server.access_log.awaiting import AccessLog, tag_of
from epp.server.workers.batches import Batch, Clockwork
from epp.server.workers.messages import Kind
from epp.wire.access_log import Record

PAUSE_S = 0.005


class ForeignRecords:
    """
    Args:
        send: to the parent, which passes it on: kind, content, worker.
    """

    def __init__(
        self,
        access_log: AccessLog,
        number: int,
        workers: int,
        send: Callable[[Kind, Any, int], None],
        time: Clockwork,
    ) -> None:
        self._access_log = access_log

        def batch(worker: int) -> Batch[Record]:
            return Batch(lambda records: send(Kind.RECORDS, records, worker), PAUSE_S, time)

        self._others = {str(worker): batch(worker) for worker in range(workers) if worker != number}

    def deliver(self, record: Record) -> bool:
        """To whom it belongs. False: it is not of this picker."""
        if self._access_log.deliver(record):
            return True
        other = self._others.get(tag_of(record.request_id or "").rpartition(".")[2])
        if other is None:
            return False
        other.add(record)
        return True

    def came_back(self, records: list[Record]) -> None:
        """From a worker that got ours. Those of an earlier life of this worker are nobody's any more."""
        for record in records:
            self._access_log.deliver(record)
