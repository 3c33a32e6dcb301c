"""Messages read by hand are what protobuf makes of the same bytes: the same content, or the same refusal."""

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.wire.codec import ProtocolError, Reader, decode
from epp.wire.events import BodyMode
from epp.wire.table import Kind, Side

MAX_HEADERS = 6
NAMESPACES = st.sampled_from(["envoy.lb", "envoy.lb.subset_hint", "other"])
KEYS = st.sampled_from(["x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-served", "other"])
VALUES = st.sampled_from(["10.0.0.1:8000", "a, b", "", 1.0, None, True]) | st.lists(st.text(max_size=3), max_size=2)
NAMES = st.sampled_from(["x-a", "X-A", "x-b", ":status", "upgrade", ":method", "café", ""])


def described(read, data):
    """All that is ever asked of a message, or the refusal."""
    try:
        message = read(data)
    except ProtocolError as error:
        return str(error)
    try:
        modes = message.modes()
    except ProtocolError as error:
        modes = str(error)
    headers = None if message.headers is None else dict(message.headers.last_values)
    about = message.beside.subset, message.beside.served_address, message.beside.access_log, message.status(), modes
    return message.side, message.kind, bytes(message.body), headers, about


@st.composite
def messages(draw):
    """Serialized messages as Envoy might write them, all of what it might say beside the part included."""
    proto = envoy.ProcessingRequest()
    kind = draw(
        st.sampled_from(["request_body", "response_body", "request_headers", "response_headers", "", "trailers"])
    )
    if kind.endswith("body"):
        part = getattr(proto, kind)
        part.SetInParent()
        part.body = draw(st.binary(max_size=20) | st.sampled_from([b"x" * size for size in (127, 128, 16_384)]))
        part.end_of_stream = draw(st.booleans())
    elif kind.endswith("headers"):
        part = getattr(proto, kind)
        part.end_of_stream = draw(st.booleans())
        for name in draw(st.lists(NAMES, max_size=MAX_HEADERS + 1)):
            raw, value = draw(st.binary(max_size=4) | st.just(b"gzip")), draw(st.sampled_from(["", "", "text"]))
            part.headers.headers.add(key=name, raw_value=raw, value=value)
    elif kind == "trailers":
        proto.response_trailers.SetInParent()
    for namespace, key, value in draw(st.lists(st.tuples(NAMESPACES, KEYS, VALUES), max_size=2)):
        proto.metadata_context.filter_metadata[namespace].update({key: value})
    if draw(st.booleans()):
        proto.metadata_context.SetInParent()
    proto.observability_mode = draw(st.booleans())
    if draw(st.booleans()):
        proto.protocol_config.request_body_mode = draw(st.sampled_from([*BodyMode, BodyMode.NONE])).value
        proto.protocol_config.response_body_mode = draw(st.sampled_from([0, 4, 5, 77]))
    if draw(st.booleans()):
        proto.attributes["envoy.filters.http.ext_proc"].update({"request.id": "1"})
    return proto.SerializeToString()


@st.composite
def damaged(draw):
    """Bytes that were a message, or several, before something happened to them."""
    data = bytearray(b"".join(draw(st.lists(messages(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove"])):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case _:
                del data[at : at + draw(st.integers(1, 4))]
    return bytes(data)


@given(st.lists(messages() | damaged() | st.binary(max_size=12), max_size=3))
@example([b"\x22\x80\x00"])  # a length of more bytes than it needs
@example([b"\x2a\x04\x0a\x80\x80\x80\x80\x00"])  # and one that goes on beyond its message
@example([b"\x22\x03\x0a\x05ab"])  # a body longer than its part
@example([b"\x22\x02\x0a\x00\x22\x02\x10\x01"])  # a part twice: protobuf merges them
@example([b"\x22\x02\x10\x00"])  # an end of stream that is said to be none
@example([b"\x22\x04\x10\x01\x0a\x00", b"\x22\x00\x42"])
@settings(max_examples=200, deadline=None)
def test_a_stream_is_read_as_protobuf_reads_each_message_alone(stream):
    reader = Reader(MAX_HEADERS)
    for data in stream:
        expected = described(lambda data: decode(data, MAX_HEADERS), data)
        chunk = reader.response_chunk(data)
        if chunk is not None:
            beside = described(reader.read, data)[4]
            assert expected == (Side.RESPONSE, Kind.BODY, chunk, None, beside)
            assert chunk
        assert described(reader.read, data) == expected


@pytest.mark.parametrize("size", [1, 127, 128, 250, 16_000])
def test_a_chunk_like_the_one_before_is_read_the_short_way(size):
    def message(body, end=False):
        return envoy.ProcessingRequest(response_body={"body": body, "end_of_stream": end}, metadata_context={})

    reader = Reader(MAX_HEADERS)
    chunk = message(b"x" * size).SerializeToString()
    assert reader.response_chunk(chunk) is None  # what it says beside has not been seen
    reader.read(chunk)
    assert reader.response_chunk(chunk) == b"x" * size
    for other in (message(b"x", end=True), message(b"")):
        assert reader.response_chunk(other.SerializeToString()) is None


def test_what_stands_behind_one_body_is_not_taken_for_that_of_the_next():
    def body(served):
        proto = envoy.ProcessingRequest(response_body={"body": b"x"})
        if served:
            fields = {"x-gateway-destination-endpoint-served": served}
            proto.metadata_context.filter_metadata["envoy.lb"].update(fields)
        return proto.SerializeToString()

    reader = Reader(MAX_HEADERS)
    served = ["a:1", "a:1", None, "b:1", "b:1"]
    assert [reader.read(body(address)).beside.served_address for address in served] == served
