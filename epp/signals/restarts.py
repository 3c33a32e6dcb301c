"""Whether the server behind an endpoint is still the process that it was.

A container that is restarted in place keeps its endpoint's name and address and comes back with an empty cache. Nothing
says so but its own page: the time at which the process started or, where a page does not tell that, totals that are
smaller than they were.

Only a start later than every one seen counts: several processes may take turns in answering on one port, and
then the page swings between their start times for ever.
"""

from collections.abc import Mapping

PROCESS_START = "process_start_time_seconds"  # by the convention of Prometheus' client libraries


class Restarts:
    """Counts the restarts of one endpoint's server."""

    def __init__(self) -> None:
        self._count = 0
        self._started_at_s: float | None = None
        self._totals: dict[str, float] = {}

    def count(self, started_at_s: float | None, totals: Mapping[str, float]) -> int:
        """Restarts seen so far, this page included.

        Args:
            started_at_s: Unix time at which the process started; `None` if the page does not say.
            totals: what the page says that only ever grows, by family. Counts where there is no `started_at_s`.
        """
        if started_at_s is None:
            restarted = any(total < self._totals.get(family, 0.0) for family, total in totals.items())
        else:
            restarted = self._started_at_s is not None and started_at_s > self._started_at_s
            self._started_at_s = max(started_at_s, self._started_at_s or started_at_s)
        self._totals |= totals
        self._count += restarted
        return self._count
