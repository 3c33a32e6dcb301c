"""Families about the processes of one picker. With one process there are none of these."""

import os
import resource

from epp.observe.families import Families

BY_WORKER = ("worker",)
_PAGE_BYTES = resource.getpagesize()


class WorkerMetrics:
    """Declared alike in the parent and in its workers; what a worker counts reaches the parent's.

    Attributes:
        restarts: by the parent.
    """

    def __init__(self, families: Families) -> None:
        counter, gauge = families.counter, families.gauge
        self.restarts = counter("worker_restarts", "Workers that ended and were started anew.", BY_WORKER)
        self._ready = gauge("worker_ready", "1 while the worker takes connections.", BY_WORKER)
        self._connections = gauge("worker_connections", "Connections for ext_proc that the worker has.", BY_WORKER)
        self._cpu_s = counter("worker_cpu_seconds", "CPU time of the worker, over all its lives.", BY_WORKER)
        self._resident_bytes = gauge(
            "worker_resident_memory_bytes", "Memory of the worker, with what it shares with others.", BY_WORKER
        )

    def declare(self, worker: int) -> None:
        """Show a worker's series from the start."""
        self.restarts[str(worker),]
        self.seen(worker, ready=False, connections=0)

    def seen(self, worker: int, *, ready: bool, connections: int) -> None:
        """By the parent."""
        self._ready[str(worker),].set(ready)
        self._connections[str(worker),].set(connections)

    def measure(self, worker: int) -> None:
        """By the worker, of itself."""
        times = os.times()
        self._cpu_s[str(worker),].value = times.user + times.system
        self._resident_bytes[str(worker),].set(_resident_bytes())


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:  # not on Linux: what it was at most
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
