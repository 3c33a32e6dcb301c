"""Envoy's access log service: `StreamAccessLogs`, on the ports of ext_proc.

A stream of it lives as long as Envoy does, and nothing is ever answered. So it is ended by us as soon as the process is
to end: the transport would wait for it. And a picker that is not ready, as of several with a leader all others, ends it
with its first message, so that Envoy takes it to one that is.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from epp.server.transport import Stream
from epp.wire.access_log import Record, UnreadableError, read_records

logger = logging.getLogger(__name__)

ACCESS_LOG_METHOD = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"

# Envoy sends what has gathered as soon as it is 16 KiB, unless told otherwise.
MAX_MESSAGE_BYTES = 1024 * 1024


class Observer(Protocol):
    """Who counts. Called inline; must be quick and must not raise."""

    def log_message_is_unreadable(self) -> None: ...

    def record_is_not_ours(self) -> None: ...


class AccessLogService:
    """The factory of the method's exchanges; it knows which are open."""

    def __init__(
        self, deliver: Callable[[Record], bool], observer: Observer, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """
        Args:
            deliver: takes a record that names a request; False: it is nobody's here.
            is_wanted: asked with each message: False if the log should go to another picker.
        """
        self._deliver = deliver
        self._observer = observer
        self._is_wanted = is_wanted
        self._open: set[_Reading] = set()
        self._draining = False

    def __call__(self, stream: Stream) -> "_Reading":
        reading = _Reading(self, stream)
        self._open.add(reading)
        if self._draining:
            stream.finish()
        return reading

    def take(self, data: bytes, stream: Stream) -> None:
        """The records of one message. What is wrong with it is counted and costs nothing else."""
        if not self._is_wanted():
            stream.finish()
        try:
            if len(data) > MAX_MESSAGE_BYTES:
                raise UnreadableError
            records = read_records(data)
        except UnreadableError:
            self._observer.log_message_is_unreadable()
            return
        for record in records:
            if record.request_id is None or not self._deliver(record):
                self._observer.record_is_not_ours()

    def forget(self, reading: "_Reading") -> None:
        self._open.discard(reading)

    async def drain(self, grace_s: float) -> None:
        """End all streams, and those to come."""
        self._draining = True
        for reading in self._open:
            reading.stream.finish()

    async def stop(self) -> None:
        await self.drain(0)


class _Reading:
    """One stream."""

    finished = False

    def __init__(self, service: AccessLogService, stream: Stream) -> None:
        self.stream = stream
        self._service = service

    def receive(self, data: bytes) -> list[bytes]:
        self._service.take(data, self.stream)
        return []

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        self._service.forget(self)
