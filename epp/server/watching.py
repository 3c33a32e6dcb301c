"""What is learned of a response as it passes by, and when that is enough.

Three things are wanted of it: when its first token came, how fast the others followed, and the server's own token
counts, which stand at its ends. For the pace a few events do, so only those are counted: a response of ten thousand
tokens costs no more than one of a hundred. Of the rest, chunks are kept by reference, the last few of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from epp.inference.request import Api, Usage
from epp.inference.usage import first_usage, merge_sse_usage, usage_from_ends, usage_from_json
from epp.server.access_log.awaiting import AccessLog
from epp.server.first_token import FirstToken
from epp.wire.window import BodyWindow

# Four times what a pace must rest on to be learned from.
PACE_EVENTS: Final = 32

# How many responses per second are watched for their pace although they could be let go of with their first token. Ten
# times what training needs. Not more: where few requests come, each chunk wakes an idle process, which costs some
# 300 µs of CPU rather than the 10 to 15 µs of a busy one, and a budget above their rate would watch all of them.
PACES_PER_S: Final = 1.0


class Observer(Protocol):
    """Who counts. Called inline; must be quick and must not raise."""

    def response_let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """
    Attributes:
        head_bytes: how much of a response's start is kept to read usage from.
        stream_tail_bytes, json_tail_bytes: and of its end. Usage is in the last events of a stream, and stands near the
            end of a JSON body, though not always: one of usual length is kept whole.
    """

    head_bytes: int = 4096
    stream_tail_bytes: int = 16 * 1024
    json_tail_bytes: int = 512 * 1024


class PaceBudget:
    """So many paces per second: a token bucket that holds one second's worth."""

    def __init__(self, clock: Callable[[], float], per_s: float = PACES_PER_S) -> None:
        self._clock = clock
        self._per_s = self._left = per_s
        self._filled_s = clock()

    def take(self) -> bool:
        now_s = self._clock()
        self._left = min(self._per_s, self._left + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class Watching:
    """What all exchanges of a process share for it.

    Attributes:
        to_the_end: asked once per response: whether this one is watched to its end, whatever it costs.
    """

    access_log: AccessLog
    observer: Observer
    paces: PaceBudget
    to_the_end: Callable[[], bool]


class ResponseWatch:
    """One response.

    Attributes:
        looking: each chunk is still of interest; afterwards only as one of the last. From then on `feed` tells nothing.
        counted_s: when the last event was counted, if they were not counted to the end.
    """

    __slots__ = ("_api", "_chunks_left", "_events", "_first_token", "_streamed", "_window", "counted_s", "looking")

    def __init__(
        self, api: Api, options: WatchOptions, *, streamed: bool, readable_events: bool, pace_events: int | None
    ) -> None:
        """
        Args:
            streamed: it is a stream of events.
            readable_events: and not compressed.
            pace_events: how many events to count from the first token on; `None`: all.
        """
        self._api = api
        self._streamed = streamed
        self._first_token = FirstToken(api, readable_events=readable_events)
        self._window = BodyWindow(
            options.head_bytes, options.stream_tail_bytes if streamed else options.json_tail_bytes
        )
        self._events = pace_events
        self._chunks_left = pace_events  # of a stream whose events are few, or cannot be read
        self.counted_s: float | None = None
        self.looking = True

    def feed(self, data: bytes, now_s: float) -> bool:
        """Take the next bytes. True once: when they hold the first token."""
        self._window.feed(data)
        if not self.looking:
            return False
        first_token = self._first_token
        is_first = first_token.feed(data)
        if first_token.seen and self._events is not None and self._chunks_left is not None:
            self._chunks_left -= 1
            if self._chunks_left <= 0 or first_token.token_events >= self._events or not self._streamed:
                self.looking = False
                self.counted_s = now_s
        return is_first

    @property
    def token_events(self) -> int:
        """See `epp.ledger.Outcome`."""
        return self._first_token.token_events

    @property
    def response_bytes(self) -> int:
        return self._window.total_bytes

    def usage(self) -> Usage:
        """The server's token counts, as far as they stood in what was kept."""
        api, window = self._api, self._window
        if self._streamed:
            usage = Usage()
            for payload in window.payloads(lambda data: first_usage(api, data)):
                usage = merge_sse_usage(api, payload, usage)
            return usage
        whole = window.whole
        return usage_from_ends(api, window.head, window.tail) if whole is None else usage_from_json(api, whole)
