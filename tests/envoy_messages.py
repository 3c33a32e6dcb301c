"""What Envoy says on an ext_proc stream, and what we answer, on the full set of Envoy's messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.wire.events import BodyMode

FULL_DUPLEX = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
RECOMMENDED = (BodyMode.BUFFERED, BodyMode.STREAMED)
DESTINATION = "x-gateway-destination-endpoint"
DROPPED_REASON = "x-llm-d-request-dropped-reason"

Modes = tuple[BodyMode, BodyMode]


def request_headers(
    headers: Mapping[str, str],
    end: bool = False,
    modes: Modes = FULL_DUPLEX,
    subset: str | None = None,
    promise: str | None = None,
) -> bytes:
    """The first message of a stream. `promise`: of access log records, as the recommended bootstrap makes it."""
    message = pb.ProcessingRequest()
    request_mode, response_mode = (ProcessingMode.BodySendMode.Value(mode.name) for mode in modes)
    message.protocol_config.request_body_mode = request_mode
    message.protocol_config.response_body_mode = response_mode
    _fill(message.request_headers, headers, end)
    if subset is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint.update({"x-gateway-destination-endpoint-subset": subset})
    if promise is not None:
        message.metadata_context.filter_metadata["envoy.lb"].update({"x-headroom-access-log": promise})
    return message.SerializeToString()


def request_body(data: bytes, end: bool = True) -> bytes:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end)).SerializeToString()


def response_headers(
    status: int = 200, headers: Mapping[str, str] | None = None, end: bool = False, served: str | None = None
) -> bytes:
    """`served`: the server that answered, told as the recommended bootstrap does."""
    message = pb.ProcessingRequest()
    _fill(message.response_headers, {":status": str(status), **(headers or {})}, end)
    if served is not None:
        message.metadata_context.filter_metadata["envoy.lb"].update({f"{DESTINATION}-served": served})
    return message.SerializeToString()


def response_body(data: bytes, end: bool = False) -> bytes:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end)).SerializeToString()


def log_record(
    request_id: str | None, *, running: bool = False, flags: Sequence[str] = (), last_byte_s: float = 1.0, **counts: Any
) -> bytes:
    """A message of Envoy's access log with one record. `flags`: names of response flags; `counts`: token counts."""
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.intermediate_log_entry = running
    common.time_to_last_upstream_rx_byte.FromNanoseconds(int(last_byte_s * 1e9))
    common.metadata.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint": "10.0.0.1:8000"})
    if request_id is not None:
        common.metadata.filter_metadata["headroom"].update({"request_id": request_id, **counts})
    for flag in flags:
        setattr(common.response_flags, flag, True)
    entry.response.response_body_bytes = 1234
    logs = als_pb2.StreamAccessLogsMessage.HTTPAccessLogEntries(log_entry=[entry])
    return als_pb2.StreamAccessLogsMessage(http_logs=logs).SerializeToString()


def name_of(answer: pb.ProcessingResponse) -> str | None:
    """What the access log is to call the request, by the answer that routes it."""
    ours = answer.dynamic_metadata.fields.get("headroom")
    return None if ours is None else ours.struct_value.fields["request_id"].string_value


def response_trailers() -> bytes:
    return pb.ProcessingRequest(response_trailers=pb.HttpTrailers()).SerializeToString()


def reply(data: bytes) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(data)


def set_headers(answer: pb.ProcessingResponse) -> dict[str, str]:
    """The headers that an answer sets, whatever it answers."""
    part = getattr(answer, answer.WhichOneof("response"))
    mutation = part.headers if answer.HasField("immediate_response") else part.response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def _fill(part: pb.HttpHeaders, headers: Mapping[str, str], end: bool) -> None:
    part.end_of_stream = end
    for key, value in headers.items():
        part.headers.headers.add(key=key, raw_value=value.encode())
