"""A picker that knows one answer, obeys every processing mode, and remembers what Envoy told it, in order.

It is written on `xds-protos`, so it shares no code with the picker under test: what it sees is what any picker sees.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import grpc
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as pb_grpc

FULL_DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
DESTINATION = "x-gateway-destination-endpoint"
MAX_MESSAGE_BYTES = 128 * 1024 * 1024


@dataclass
class Exchange:
    """One ext_proc stream: what came, and how it ended (`eof`, `cancelled`; `None` while it is open)."""

    messages: list[pb.ProcessingRequest] = field(default_factory=list)
    end: str | None = None

    @property
    def kinds(self) -> list[str]:
        """Message kinds in order; a kind that repeats is told once, the last of a body with `.end`."""
        told: list[str] = []
        for message in self.messages:
            kind = message.WhichOneof("request")
            last = getattr(getattr(message, kind), "end_of_stream", False)
            name = f"{kind}.end" if last else kind
            if not told or told[-1] != name:
                told.append(name)
        return told

    def of_kind(self, kind: str) -> list[pb.ProcessingRequest]:
        return [message for message in self.messages if message.WhichOneof("request") == kind]

    def body(self, kind: str) -> bytes:
        return b"".join(getattr(message, kind).body for message in self.of_kind(kind))

    @property
    def served(self) -> str | None:
        """The server that answered, by the metadata of the response headers."""
        (message,) = self.of_kind("response_headers")
        fields = message.metadata_context.filter_metadata["envoy.lb"].fields
        return fields[f"{DESTINATION}-served"].string_value if f"{DESTINATION}-served" in fields else None


class RecordingPicker(pb_grpc.ExternalProcessorServicer):
    """Serves on a free port; `destination` is its answer to everything; `silent` makes it answer nothing."""

    def __init__(self, destination: str = "") -> None:
        self.destination = destination
        self.silent = False
        self.exchanges: list[Exchange] = []
        self.changed = asyncio.Condition()
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        pb_grpc.add_ExternalProcessorServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """Break off every stream and stop listening."""
        await self._server.stop(grace=None)

    async def wait_for(self, number: int, end: bool = True) -> Exchange:
        """The exchange of this number, when it has ended (or merely begun)."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(
                lambda: len(self.exchanges) > number and (not end or self.exchanges[number].end is not None)
            )
        return self.exchanges[number]

    async def Process(
        self,
        requests: AsyncIterator[pb.ProcessingRequest],
        context: "grpc.aio.ServicerContext[pb.ProcessingRequest, pb.ProcessingResponse]",
    ) -> AsyncIterator[pb.ProcessingResponse]:
        exchange = Exchange()
        self.exchanges.append(exchange)
        try:
            async for message in requests:
                exchange.messages.append(message)
                await self._tell()
                if not self.silent:
                    yield self._answer(exchange, message)
            exchange.end = "eof"
        finally:
            exchange.end = exchange.end or "cancelled"  # while it waited for a message, or in the middle of an answer
            await asyncio.shield(self._tell())

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _answer(self, exchange: Exchange, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
        modes = exchange.messages[0].protocol_config
        answer = pb.ProcessingResponse()
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            answer.request_headers.SetInParent()
            if message.request_headers.end_of_stream or modes.request_body_mode == FULL_DUPLEX:
                self._pick(answer, answer.request_headers.response)
        elif kind == "request_body":
            if modes.request_body_mode == FULL_DUPLEX:
                _echo(answer.request_body.response, message.request_body)
            else:
                self._pick(answer, answer.request_body.response)
        elif kind == "response_headers":
            answer.response_headers.SetInParent()
        elif kind == "response_body":
            answer.response_body.SetInParent()
            if modes.response_body_mode == FULL_DUPLEX:
                _echo(answer.response_body.response, message.response_body)
        else:
            getattr(answer, kind).SetInParent()
        return answer

    def _pick(self, answer: pb.ProcessingResponse, response: pb.CommonResponse) -> None:
        response.clear_route_cache = True
        option = response.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = DESTINATION, self.destination.encode()
        option.append_action = option.OVERWRITE_IF_EXISTS_OR_ADD
        answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: self.destination}})


def _echo(response: pb.CommonResponse, body: pb.HttpBody) -> None:
    piece = response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = body.body, body.end_of_stream
