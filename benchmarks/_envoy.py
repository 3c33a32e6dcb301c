"""What Envoy 1.40 sends a picker, message by message and frame by frame, as recorded with our bootstraps."""

import struct
from collections.abc import Sequence

import orjson
from hpack import Encoder

from epp.server.transport import METHOD
from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode

Modes = tuple[BodyMode, BodyMode]
RECOMMENDED: Modes = (BodyMode.BUFFERED, BodyMode.STREAMED)
FULL_DUPLEX: Modes = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)

PIECE_BYTES = 16_384  # of a body in FULL_DUPLEX_STREAMED
DESTINATION = "x-gateway-destination-endpoint"
EVENT = (
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
)

_REQUEST = {
    ":authority": "llm.example",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "authorization": "Bearer " + 40 * "x",
    "content-type": "application/json",
    "accept": "application/json",
    "user-agent": "openai-python/1.50",
    "accept-encoding": "gzip, deflate",
    "content-length": "1024",
    "x-forwarded-for": "192.0.2.2",
    "x-forwarded-proto": "http",
    "x-envoy-external-address": "192.0.2.2",
}
_RESPONSE = {
    ":status": "200",
    "content-type": "text/event-stream",
    "transfer-encoding": "chunked",
    "date": "Mon, 30 Nov 2026 01:27:41 GMT",
    "server": "uvicorn",
    "x-envoy-upstream-service-time": "41",
}


# --- messages ---------------------------------------------------------------------------------------------------------


def request_headers(modes: Modes, number: int = 0, *, end: bool = False) -> bytes:
    """The first message of a stream. `number`: what tells one request from another."""
    headers = {**_REQUEST, "x-request-id": f"6f1c5f3a-0d5c-9d3a-8f2f-{number:012x}"}
    if end:
        del headers["content-length"]
    message = pb.ProcessingRequest(request_headers=_headers(headers, end))
    message.metadata_context.SetInParent()
    message.protocol_config.request_body_mode = modes[0].value
    message.protocol_config.response_body_mode = modes[1].value
    return message.SerializeToString()


def request_body(modes: Modes, body: bytes) -> list[bytes]:
    """In one message, or in FULL_DUPLEX_STREAMED in pieces."""
    size = PIECE_BYTES if modes[0] is BodyMode.FULL_DUPLEX_STREAMED else len(body)
    messages = []
    for start in range(0, len(body), size):
        part = pb.HttpBody(body=body[start : start + size], end_of_stream=start + size >= len(body))
        message = pb.ProcessingRequest(request_body=part)
        message.metadata_context.SetInParent()
        messages.append(message.SerializeToString())
    return messages


def response_headers(served: str = "10.0.0.1:8000") -> bytes:
    return _served(pb.ProcessingRequest(response_headers=_headers(_RESPONSE, False)), served)


def response_chunk(data: bytes = EVENT, served: str = "10.0.0.1:8000", *, end: bool = False) -> bytes:
    return _served(pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end)), served)


def chat(body_bytes: int, number: int = 0) -> bytes:
    """A streamed chat whose body has this size, and words of its own."""
    words = f"request {number} " + "lorem ipsum dolor sit amet " * (body_bytes // 20)

    def of(text: str) -> bytes:
        return orjson.dumps({"model": "llama", "stream": True, "messages": [{"role": "user", "content": text}]})

    return of(words[: max(0, body_bytes - len(of("")))])


def _headers(values: dict[str, str], end: bool) -> pb.HttpHeaders:
    entries = [pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in values.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=entries), end_of_stream=end)


def _served(message: pb.ProcessingRequest, served: str) -> bytes:
    """Both names, as the recommended bootstrap forwards them."""
    fields = {DESTINATION: served, f"{DESTINATION}-served": served}
    message.metadata_context.filter_metadata["envoy.lb"].update(fields)
    return message.SerializeToString(deterministic=True)


# --- gRPC and HTTP/2 --------------------------------------------------------------------------------------------------

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
RST_STREAM = 3
END_STREAM = ACK = 1
END_HEADERS = 4

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def framed(messages: Sequence[bytes]) -> bytes:
    """Messages as gRPC puts them into a stream."""
    return b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)


def frames(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """A payload as frames of the usual size, all with the same flags."""
    pieces = [payload[start : start + 16_384] for start in range(0, len(payload), 16_384)] or [b""]
    return b"".join(
        struct.pack(">HBBBI", len(piece) >> 8, len(piece) & 255, kind, flags, stream_id) + piece for piece in pieces
    )


def greeting() -> bytes:
    """How a client opens a connection on which it takes whatever comes."""
    settings = frames(SETTINGS, 0, 0, struct.pack(">HIHI", 1, 0, 4, 2**30))
    return PREFACE + settings + frames(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))


def call_block() -> bytes:
    """The header block of every call."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            (":authority", "picker"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-envoy-internal", "true"),
            ("x-forwarded-for", "192.0.2.2"),
        ]
    )
