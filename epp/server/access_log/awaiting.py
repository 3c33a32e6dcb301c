"""The records of Envoy's access log that are awaited, and whether one may rely on their coming.

An Envoy that promises records (`epp.wire.names.ACCESS_LOG`) has each of its requests named here, and each record brings
a name back. A response is let go of only while records are **relied on**: the last so many requests that were over, one
after the other, all had theirs. One that stays away ends that, and twice as many must then come in a row. So a log that
is switched off, broken, or sent to another picker costs what it would save and no more: responses are watched to their
end.

A record is *missing* when nothing was heard of the request for too long:

* of one that runs, Envoy reports every interval that it promised; three of them, and a little, is too long;
* of one that is over, as far as we can see, `OVERDUE_S` is.

Names are `tag-number`. The tag is this process's own, so what comes for one before it, or for another, is told apart.
"""

import heapq
import logging
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from epp.observe.logs import OncePer
from epp.units import parse_duration_s
from epp.wire.access_log import Record

logger = logging.getLogger(__name__)

# After the end. Envoy flushes its log every second unless told otherwise.
OVERDUE_S: Final = 5.0
MISSED_REPORTS: Final = 3
GRACE_S: Final = 2.0

# Records in a row that make them relied on: at first, and at most.
FIRST_STREAK: Final = 4
LONGEST_STREAK: Final = 1024
# After so many times the needed streak an old disappointment is forgotten.
FORGIVING: Final = 16

# Entries of those whose record has come that may stand among the due, beyond as many as are awaited.
SPARE_DUE: Final = 64

# Requests that are named at one time while records are not relied on: enough to find out whether they come.
MOST_ON_TRIAL: Final = 1024

# Intervals that make sense as a promise, in seconds.
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.1, 600.0

LOG_INTERVAL_S: Final = 60.0

OnRecord = Callable[[Record | None], None]


class Timer(Protocol):
    def cancel(self) -> None: ...


class Observer(Protocol):
    """Who counts. Called inline; must be quick and must not raise."""

    def awaited_record_came(self) -> None: ...

    def awaited_record_is_missing(self) -> None: ...

    def relied_on(self, relied_on: bool) -> None: ...


class Awaited:
    """A request whose record has not come, from its route on.

    Attributes:
        name: what Envoy is to call it.
    """

    __slots__ = ("_log", "due_s", "name", "number", "on_record", "patience_s", "record")

    def __init__(self, log: "AccessLog", number: int, name: str, patience_s: float) -> None:
        self._log = log
        self.number = number
        self.name = name
        self.patience_s = patience_s  # without a sign of life
        self.due_s: float | None = None  # when it is missing; `None`: its stream is open, which is sign enough
        self.on_record: OnRecord | None = None
        self.record: Record | None = None  # came before anybody asked

    def let_go(self, on_record: OnRecord) -> None:
        """The request runs on out of our sight. `on_record` is called once: with its record, or `None` if that is
        missing; perhaps at once."""
        self._log._wait(self, self.patience_s, on_record)

    def over(self, on_record: OnRecord | None = None) -> None:
        """The request is over, and its record due."""
        self._log._wait(self, OVERDUE_S, on_record)

    def forget(self) -> None:
        """No record will come, and that is nobody's fault."""
        self._log._forget(self)


class AccessLog:
    """One per process."""

    def __init__(
        self,
        tag: str,
        observer: Observer,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        watched_ratio: float = 0.0,
    ) -> None:
        """
        Args:
            tag: of this process, in every name: none other, alive or dead, whose records may come here has it.
            watched_ratio: of the streamed responses, those that are watched to their end all the same; for the log.
        """
        self.tag = tag
        self._observer = observer
        self._clock = clock
        self._call_later = call_later
        self._watched_ratio = watched_ratio
        self._awaited: dict[int, Awaited] = {}
        self._last_number = 0
        # When to look at a request again, soonest first. One that gave a sign of life meanwhile is put back.
        self._due: list[tuple[float, int]] = []
        self._timer: Timer | None = None
        self._timer_s = math.inf
        self._streak = 0
        self._needed_streak = FIRST_STREAK
        self._relied_on = False
        self._loggable = OncePer(LOG_INTERVAL_S, clock)

    @property
    def relied_on(self) -> bool:
        """Responses may be let go of."""
        return self._relied_on

    @property
    def awaited(self) -> int:
        """Requests whose record has not come."""
        return len(self._awaited)

    def expect(self, promise: str | None) -> Awaited | None:
        """A request is about to be routed. `None` if Envoy promises no record, or too many are on trial."""
        interval_s = None if promise is None else promised_interval_s(promise)
        if interval_s is None or (not self._relied_on and len(self._awaited) >= MOST_ON_TRIAL):
            return None
        self._last_number = number = self._last_number + 1
        awaited = Awaited(self, number, f"{self.tag}-{number}", MISSED_REPORTS * interval_s + GRACE_S)
        self._awaited[number] = awaited
        return awaited

    def deliver(self, record: Record) -> bool:
        """A record came. False if it is not for this process: see `tag_of`."""
        tag, _, number = (record.request_id or "").rpartition("-")
        if tag != self.tag:
            return False
        awaited = self._awaited.get(int(number)) if number.isascii() and number.isdecimal() else None
        if awaited is None:
            return True  # it came too late, or twice
        if not record.ended:
            if awaited.due_s is not None:
                awaited.due_s = self._clock() + awaited.patience_s
            return True
        self._drop(awaited)
        self._came()
        if awaited.on_record is None:
            awaited.record = record
        else:
            _tell(awaited.on_record, record)
        return True

    # --- for those that are awaited -----------------------------------------------------------------------------------

    def _wait(self, awaited: Awaited, patience_s: float, on_record: OnRecord | None) -> None:
        if awaited.number not in self._awaited:
            if on_record is not None:
                _tell(on_record, awaited.record)
            return
        awaited.on_record = on_record
        awaited.due_s = self._clock() + patience_s
        heapq.heappush(self._due, (awaited.due_s, awaited.number))
        if len(self._due) > 2 * len(self._awaited) + SPARE_DUE:  # most of them have come meanwhile
            self._due = [due for due in self._due if due[1] in self._awaited]
            heapq.heapify(self._due)
        if awaited.due_s < self._timer_s:
            self._set_timer(awaited.due_s)

    def _forget(self, awaited: Awaited) -> None:
        if awaited.number in self._awaited:
            self._drop(awaited)

    def _drop(self, awaited: Awaited) -> None:
        del self._awaited[awaited.number]
        if not self._awaited:
            self._due.clear()
            self._set_timer(math.inf)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = at_s
        if at_s < math.inf:
            self._timer = self._call_later(max(0.0, at_s - self._clock()), self._look)

    def _look(self) -> None:
        """At those whose time has come; most have had their record meanwhile."""
        self._set_timer(math.inf)
        now_s = self._clock()
        while self._due:
            due_s, number = self._due[0]
            awaited = self._awaited.get(number)
            if awaited is None or awaited.due_s is None:
                heapq.heappop(self._due)
            elif due_s > now_s:
                self._set_timer(due_s)
                return
            elif awaited.due_s > now_s:
                heapq.heapreplace(self._due, (awaited.due_s, number))
            else:
                heapq.heappop(self._due)
                self._is_missing(awaited)

    # --- reliance -----------------------------------------------------------------------------------------------------

    def _came(self) -> None:
        self._observer.awaited_record_came()
        self._streak += 1
        if not self._relied_on and self._streak >= self._needed_streak:
            self._rely(True)
            if self._loggable("come"):
                logger.info("Envoy's access log comes: %s", _what_follows(self._watched_ratio))
        if self._streak >= FORGIVING * self._needed_streak:
            self._needed_streak = FIRST_STREAK

    def _is_missing(self, awaited: Awaited) -> None:
        del self._awaited[awaited.number]
        self._observer.awaited_record_is_missing()
        self._streak = 0
        if self._relied_on:
            self._rely(False)
            self._needed_streak = min(2 * self._needed_streak, LONGEST_STREAK)
        if self._loggable("missing"):
            logger.warning(
                "a record of Envoy's access log that was promised did not come: responses are watched to their end "
                "until %d in a row have come. Does the access log's cluster lead to this picker, and to no other?",
                self._needed_streak,
            )
        if awaited.on_record is not None:
            _tell(awaited.on_record, None)

    def _rely(self, relied_on: bool) -> None:
        self._relied_on = relied_on
        self._observer.relied_on(relied_on)


def _tell(on_record: OnRecord, record: Record | None) -> None:
    """What goes wrong with one request's end must not touch the others."""
    try:
        on_record(record)
    except Exception:
        logger.exception("a request failed to end by its record")


def tag_of(request_id: str) -> str:
    """The tag of the process that gave a request this name."""
    return request_id.rpartition("-")[0]


@lru_cache(64)
def promised_interval_s(promise: str) -> float | None:
    """How often Envoy reports on a request that runs; `None` for a promise that makes no sense."""
    try:
        interval_s = parse_duration_s(promise)
    except ValueError:
        interval_s = 0.0
    if SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
        return interval_s
    logger.warning("Envoy promises access log records every %.20r, which is no time from 100ms to 10m", promise)
    return None


def _what_follows(watched_ratio: float) -> str:
    if watched_ratio >= 1.0:
        return "responses are watched to their end all the same, as --observe-responses 1 says"
    but = f", but for {watched_ratio:.0%}, which are watched to their end" if watched_ratio else ""
    return f"streamed responses are let go of after their first token{but}"
