"""An engine in real time: one timer that advances it, and one stream of tokens per request.

Simulated seconds are real ones times `speed`. The timer wakes when the engine has something to do, but at most about
once per millisecond: what has become due by then comes at once, with the engine's own exact times.
"""

import asyncio
from types import TracebackType

from epp.sim.engine import Engine
from epp.sim.types import Admission, SimRequest, TokenEvent

_SHORTEST_SLEEP_S = 0.001


class TokenStream:
    """The tokens of one request. Leaving its `with` block before the last token aborts the request."""

    def __init__(self, runner: "EngineRunner", request_id: str) -> None:
        self._runner = runner
        self._request_id = request_id
        self._events: list[TokenEvent] = []
        self._arrived = asyncio.Event()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.abort(self._request_id)

    async def next(self) -> list[TokenEvent]:
        """The tokens since the last call; waits until there is at least one. Not to be called after the last."""
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events

    def deliver(self, event: TokenEvent) -> None:
        self._events.append(event)
        self._arrived.set()


class EngineRunner:
    """Runs `engine` on the running event loop, from its construction until `close`."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self.engine = engine
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._streams: dict[str, TokenStream] = {}

    def submit(self, request: SimRequest) -> TokenStream | Admission:
        """A stream to be used as a context manager, or why there is none."""
        admission = self.engine.submit(request, self._now_s())
        if admission is not Admission.ACCEPTED:
            return admission
        stream = self._streams[request.id] = TokenStream(self, request.id)
        self._arm()
        return stream

    def abort(self, request_id: str) -> None:
        """Forget a request; of one that has ended nothing is left to forget."""
        if self._streams.pop(request_id, None) is not None:
            self.engine.abort(request_id)

    async def sleep(self, simulated_ms: float) -> None:
        await asyncio.sleep(simulated_ms / 1000.0 / self.speed)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now_s(self) -> float:
        return (self._loop.time() - self._start_s) * self.speed

    def _arm(self) -> None:
        next_s = self.engine.next_event_s()
        if self._timer is None and next_s is not None:
            delay_s = (next_s - self._now_s()) / self.speed
            self._timer = self._loop.call_later(max(delay_s, _SHORTEST_SLEEP_S), self._tick)

    def _tick(self) -> None:
        self._timer = None
        for event in self.engine.advance(self._now_s()):
            if stream := self._streams.get(event.request_id):
                stream.deliver(event)
                if event.last:
                    del self._streams[event.request_id]
        self._arm()
