"""Health on the ext_proc port: the same answers as everywhere, as exchanges."""

import asyncio
from collections.abc import Mapping

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from epp.server.health import HEALTH_SERVICE, HealthService
from epp.server.lean.stream import Method
from epp.server.transport import Exchange, Stream
from epp.wire.codec import ProtocolError


def health_methods(service: HealthService) -> Mapping[bytes, Method]:
    """`grpc.health.v1.Health`, by path."""

    def check(_: Stream) -> Exchange:
        return _Check(service)

    def list_(_: Stream) -> Exchange:
        return _List(service)

    def watch(stream: Stream) -> Exchange:
        return _Watch(service, stream)

    methods = {"Check": Method(check), "List": Method(list_), "Watch": Method(watch, ends_with_requests=False)}
    return {f"/{HEALTH_SERVICE}/{name}".encode(): method for name, method in methods.items()}


class _Check:
    def __init__(self, service: HealthService) -> None:
        self._service = service
        self.finished = False

    def receive(self, data: bytes) -> list[bytes]:
        self.finished = True
        return [self._service.answer(_asked_service(data)).SerializeToString()]

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        pass


class _List(_Check):
    def receive(self, data: bytes) -> list[bytes]:
        self.finished = True
        return [self._service.answers().SerializeToString()]


class _Watch:
    """Lives on after its one request, which the client half-closes: the only exchange with a task."""

    finished = False

    def __init__(self, service: HealthService, stream: Stream) -> None:
        self._service = service
        self._stream = stream
        self._telling: asyncio.Task[None] | None = None

    def receive(self, data: bytes) -> list[bytes]:
        service = _asked_service(data)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell(service))
        return []

    def closed(self, *, cancelled: bool, lost: bool = False) -> None:
        if self._telling is not None:
            self._telling.cancel()

    async def _tell(self, service: str) -> None:
        async for answer in self._service.changes(service):
            self._stream.send([answer.SerializeToString()])
        self._stream.finish()


def _asked_service(data: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(data).service)
    except DecodeError:
        raise ProtocolError("not a health request") from None
