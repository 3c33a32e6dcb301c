"""One routed request, from its route to its end: what is seen of the response, and when it is let go of.

An exchange may be over before its request is. A streamed response is let go of as soon as enough is known of it, where
Envoy's modes allow it and its access log tells us the end. And where a stream ends in a way that can mean two things, a
client that left or a server that broke off, the log is asked which it was.
"""

from collections.abc import Callable, Mapping

from epp.director import Assignment, Director
from epp.endings import EndCause
from epp.inference.request import Usage
from epp.server.access_log.awaiting import Awaited
from epp.server.access_log.ending import Ending
from epp.server.watching import PACE_EVENTS, ResponseWatch, Watching, WatchOptions
from epp.wire.conversation import Conversation
from epp.wire.events import ResponseStarted


class Following:
    """
    Attributes:
        assignment: the request.
    """

    __slots__ = (
        "_awaited",
        "_clock",
        "_conversation",
        "_director",
        "_may_let_go",
        "_options",
        "_over",
        "_watch",
        "_watching",
        "assignment",
    )

    def __init__(
        self,
        assignment: Assignment,
        awaited: Awaited | None,
        conversation: Conversation,
        director: Director,
        watching: Watching,
        options: WatchOptions,
        clock: Callable[[], float],
    ) -> None:
        """`awaited`: Envoy's record of the request, if it promises one."""
        self.assignment = assignment
        self._awaited = awaited
        self._conversation = conversation
        self._director = director
        self._watching = watching
        self._options = options
        self._clock = clock
        self._watch: ResponseWatch | None = None
        self._may_let_go = False
        self._over = False  # for us

    def is_unnamed(self) -> None:
        """Envoy was not told what to call the request, so no record will name it."""
        if self._awaited is not None:
            self._awaited.forget()
            self._awaited = None

    def response_started(self, started: ResponseStarted) -> Mapping[str, str]:
        """Its headers came. Returns the headers to add."""
        headers = started.headers
        added = self._director.response_started(
            self.assignment, started.status, headers.last_values, started.served_address
        )
        watching, streamed = self._watching, self.assignment.streamed
        to_the_end = self._director.observes_chunks or watching.to_the_end()
        # JSON comes in few chunks, however many tokens it is, and its usage is read from them.
        self._may_let_go = streamed and self._awaited is not None and not to_the_end
        pace_events: int | None = PACE_EVENTS
        if to_the_end:
            pace_events = None
        elif self._may_let_go and watching.access_log.relied_on and not watching.paces.take():
            pace_events = 0
        encoding = headers.get("content-encoding") or "identity"
        self._watch = ResponseWatch(
            self.assignment.request.api,
            self._options,
            streamed=streamed,
            readable_events=streamed and encoding.strip().lower() == "identity",
            pace_events=pace_events,
        )
        return added

    def response_body(self, data: bytes) -> None:
        """Bytes of it passed."""
        watch = self._watch
        if watch is None or self._over or not data:
            return
        if watch.looking:
            if watch.feed(data, self._clock()):
                self._director.first_token(self.assignment)
            self._director.response_body(self.assignment, data)
        else:
            watch.feed(data, 0.0)
        if self._may_let_go and not watch.looking and self._watching.access_log.relied_on:
            self._let_go(watch)

    def _let_go(self, watch: ResponseWatch) -> None:
        """Enough is known of the response; its end will be in its record. If Envoy's modes do not allow it, they never
        will."""
        self._may_let_go = False
        if self._awaited is None or not self._conversation.let_go():
            return
        self._over = True
        awaited, self._awaited = self._awaited, None
        self._director.let_go(self.assignment)
        self._watching.observer.response_let_go()
        awaited.let_go(self._ending(EndCause.LOST, watch.usage(), seen_s=None))

    def ended(self, cause: EndCause) -> None:
        """It is over, as far as the stream shows."""
        if self._over:
            return
        self._over = True
        usage = Usage()
        try:
            if self._watch is not None:
                usage = self._watch.usage()
        finally:  # whatever a response may hold, its reservation ends with it
            awaited, self._awaited = self._awaited, None
            ending = self._ending(cause, usage, seen_s=self._clock())
            if awaited is not None and cause is EndCause.CLIENT_GONE and self._watching.access_log.relied_on:
                awaited.over(ending)
            else:
                ending(None)
                if awaited is not None and cause is EndCause.LOST:
                    awaited.forget()
                elif awaited is not None:
                    awaited.over()

    def _ending(self, otherwise: EndCause, usage: Usage, seen_s: float | None) -> Ending:
        watch = self._watch
        return Ending(
            self._director,
            self.assignment,
            self._clock,
            delivered=self._conversation.delivered,
            otherwise=otherwise,
            usage=usage,
            response_bytes=0 if watch is None else watch.response_bytes,
            token_events=0 if watch is None else watch.token_events,
            counted_s=None if watch is None else watch.counted_s,
            seen_s=seen_s,
        )
