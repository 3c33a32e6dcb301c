"""A small picker that keeps to the protocol, but for one fault that is switched on.

It is written on the messages of `xds-protos`, so neither side of these tests shares code with the other.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from grpc import aio

FULL_DUPLEX = 4
DESTINATION = "x-gateway-destination-endpoint"
ADDRESS = "192.0.2.1:8000"


class EndStream(Exception):
    """End the stream now, with this status."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        self.code = code


class Talk:
    """What the picker knows of one stream."""

    def __init__(self) -> None:
        self.modes = (FULL_DUPLEX, FULL_DUPLEX)
        self.headers: Any = None
        self.body = b""
        self.over = False  # end the stream with OK after these replies


# Takes what the faultless picker would reply to a message, and gives what the faulty one does.
Fault = Callable[[Talk, pb.ProcessingRequest, list[pb.ProcessingResponse]], list[pb.ProcessingResponse]]


def no_fault(_: Talk, __: pb.ProcessingRequest, replies: list[pb.ProcessingResponse]) -> list[pb.ProcessingResponse]:
    return replies


class Picker:
    """`async with Picker(fault) as port`."""

    def __init__(self, fault: Fault = no_fault) -> None:
        self._fault = fault

    async def __aenter__(self) -> int:
        self._server = aio.server()
        add_ExternalProcessorServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)

    async def Process(
        self, messages: AsyncIterator[pb.ProcessingRequest], context: aio.ServicerContext
    ) -> AsyncIterator[pb.ProcessingResponse]:
        talk = Talk()
        async for message in messages:
            try:
                replies = self._fault(talk, message, replies_to(talk, message))
            except EndStream as end:
                if end.code is not grpc.StatusCode.OK:
                    await context.abort(end.code, "as asked")
                return
            for reply in replies:
                yield reply
            if talk.over:
                return


def replies_to(talk: Talk, message: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
    if message.HasField("protocol_config"):
        talk.modes = (message.protocol_config.request_body_mode, message.protocol_config.response_body_mode)
    full_duplex = talk.modes[0 if message.WhichOneof("request").startswith("request") else 1] == FULL_DUPLEX
    match message.WhichOneof("request"):
        case "request_headers":
            talk.headers = message.request_headers.headers
            decided = message.request_headers.end_of_stream
            if full_duplex:
                return [route()] if decided else []
            return [route() if decided else pb.ProcessingResponse(request_headers=pb.HeadersResponse())]
        case "request_body":
            talk.body += message.request_body.body
            if not full_duplex:
                return [route("request_body")]
            if not message.request_body.end_of_stream:
                return []
            return [route(), streamed("request_body", talk.body, True)]
        case "request_trailers":
            trailers = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
            return [route(), streamed("request_body", talk.body, False), trailers] if full_duplex else [trailers]
        case "response_headers":
            return [pb.ProcessingResponse(response_headers=pb.HeadersResponse())]
        case "response_body":
            part = message.response_body
            if full_duplex:
                return [streamed("response_body", part.body, part.end_of_stream)]
            return [pb.ProcessingResponse(response_body=pb.BodyResponse())]
    return [pb.ProcessingResponse(response_trailers=pb.TrailersResponse())]


def route(part: str = "request_headers") -> pb.ProcessingResponse:
    reply = pb.ProcessingResponse()
    common = getattr(reply, part).response
    common.clear_route_cache = True
    set_header(common.header_mutation, DESTINATION, ADDRESS)
    reply.dynamic_metadata.update({"envoy.lb": {DESTINATION: ADDRESS}})
    return reply


def set_header(mutation: pb.HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add(append_action=2)
    option.header.key, option.header.raw_value = name, value.encode()


def streamed(part: str, body: bytes, end: bool) -> pb.ProcessingResponse:
    reply = pb.ProcessingResponse()
    piece = getattr(reply, part).response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = body, end
    return reply


def immediate(status: int) -> pb.ProcessingResponse:
    reply = pb.ProcessingResponse()
    reply.immediate_response.status.code = status
    return reply
