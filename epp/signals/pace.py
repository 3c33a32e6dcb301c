"""How often a page is read: often where something happens, seldom where nothing does.

A server is busy while requests of ours are in flight there, and when its page tells of work: requests that wait or run,
or any number that is not what it was at the reading before. A busy server is read every `interval_s`. With each reading
that finds nothing the rest doubles, up to `idle_interval_s`. A request that is sent to a server that rests makes it
busy at once. A server that fails is asked ever less often, down to about once a second.

However many servers there are, readings cost a bounded share of a core: beyond `max_reads_per_s` busy servers take
turns, and beyond `max_idle_reads_per_s` so do those that rest or fail. Neither kind takes from the other.
"""

from dataclasses import dataclass

_MAX_BACKOFF_S = 1.0
_MAX_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Census:
    """How many servers are busy, and how many rest or fail."""

    busy: int = 0
    resting: int = 0


@dataclass(frozen=True, slots=True)
class Pace:
    """The law by which readings of one endpoint follow each other; see the module's text.

    Attributes:
        interval_s: between readings of a busy server.
        idle_interval_s: between readings of an idle one; with no more than `interval_s` there is no rest.
        max_reads_per_s, max_idle_reads_per_s: of all busy servers, and of all others, together.
    """

    interval_s: float = 0.05
    idle_interval_s: float = 1.0
    max_reads_per_s: float = 2000.0
    max_idle_reads_per_s: float = 700.0

    def rest_s(self, quiet_readings: int, failures: int, census: Census) -> float:
        """From the beginning of one reading to the beginning of the next.

        Args:
            quiet_readings: in a row, that found nothing; 0 of a busy server.
            failures: readings in a row that failed.
        """
        turn_s = census.resting / self.max_idle_reads_per_s
        if failures:
            return max(self.interval_s, min(_doubled(self.interval_s, failures), max(_MAX_BACKOFF_S, turn_s)))
        busy_s = max(self.interval_s, census.busy / self.max_reads_per_s)
        return min(_doubled(busy_s, quiet_readings), max(busy_s, self.idle_interval_s, turn_s))


def pause_s(rest_s: float, took_s: float) -> float:
    """From the end of a reading that `took_s` to the beginning of the next.

    A page that took long is left alone for at least as long as it took. That halves the load on a server that labours
    and, since the time a reading waits for our own event loop counts too, on a picker that labours.
    """
    return max(rest_s - took_s, took_s)


def _doubled(rest_s: float, times: int) -> float:
    return rest_s * 2.0 ** min(times, _MAX_DOUBLINGS)
