"""Reads Envoy's gRPC access log: what it says about requests that we gave a name, and how they ended.

Envoy writes a record when a request is over, and while it runs one every so often if it is told to. We name a request
in the metadata that goes with its route, and the record brings the name back, beside the token counts that Envoy's
`sse_to_metadata` filter read out of the response. Anyone's records may come: what has no name of ours, or makes no
sense, reads as such and is never an error.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from epp.endings import EndCause
from epp.wire import access_log_pb2 as pb
from epp.wire import ext_proc_pb2
from epp.wire.names import (
    HEADROOM_NAMESPACE,
    USAGE_CACHED_TOKENS,
    USAGE_COMPLETION_TOKENS,
    USAGE_PROMPT_TOKENS,
    WATCHED_REQUEST_ID,
)

MAX_ID_CHARACTERS: Final = 128
# More than any request has; also what a number may be without losing its last digit on the way.
MAX_TOKENS: Final = 2**31

# What Envoy flags when a response that had begun was broken off, by whose doing. A flag that is not named here does not
# mean that the response was cut: a server's answer passed on after the last retry has one as well.
_BY_THE_SERVER: Final = frozenset(
    {
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        "upstream_connection_failure",
        "upstream_request_timeout",
        "upstream_max_stream_duration_reached",
        "stream_idle_timeout",
        "local_reset",
    }
)
_BY_THE_CLIENT: Final = frozenset(
    {  # or by Envoy, against its client
        "downstream_connection_termination",
        "downstream_remote_reset",
        "downstream_protocol_error",
        "duration_timeout",
        "overload_manager",
    }
)


class UnreadableError(Exception):
    """The bytes are no message of the access log."""


class Record(NamedTuple):
    """What the access log says of one request. `None`: it does not say.

    Attributes:
        request_id: the name that we gave it; `None` for a request that is not ours.
        ended: False: it still runs, and the rest is not known yet.
        cut_by: who broke the response off: the server (UPSTREAM_ERROR) or the client (CLIENT_GONE); `None`: nobody.
        last_byte_s: from the first byte of the request at Envoy to the last byte of the server's answer, in seconds.
        response_bytes: of the body, as sent to the client.
        prompt_tokens, completion_tokens, cached_tokens: by the server's own word.
    """

    request_id: str | None
    ended: bool
    cut_by: EndCause | None = None
    last_byte_s: float | None = None
    response_bytes: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def watched_as(request_id: str) -> bytes:
    """What to add to a serialized `ProcessingResponse` to name the request; protobuf merges fields that come twice."""
    name = request_id.encode()
    return _before_name(len(name)) + name


@lru_cache(MAX_ID_CHARACTERS)
def _before_name(name_bytes: int) -> bytes:
    """What stands before a name of this length: the name is the last of all fields, and only lengths go before it."""
    reply = ext_proc_pb2.ProcessingResponse()
    ours = reply.dynamic_metadata.fields[HEADROOM_NAMESPACE].struct_value.fields
    ours[WATCHED_REQUEST_ID].string_value = name_bytes * "x"
    said = reply.SerializeToString()
    return said[: len(said) - name_bytes]


def read_records(data: bytes) -> Iterator[Record]:
    """The records of one serialized `StreamAccessLogsMessage`, in order.

    Raises:
        UnreadableError: it is none. Raised before the first record.
    """
    try:
        message = pb.StreamAccessLogsMessage.FromString(data)
    except DecodeError:
        raise UnreadableError from None
    return map(_record, message.http_logs.log_entry)


def _record(entry: pb.HTTPAccessLogEntry) -> Record:
    common = entry.common_properties
    # `get`, for indexing a protobuf map would add the key.
    ours = common.metadata.filter_metadata.get(HEADROOM_NAMESPACE)
    request_id = None if ours is None else _text(ours.fields.get(WATCHED_REQUEST_ID))
    ended = not common.intermediate_log_entry
    if ours is None or request_id is None or not ended:
        return Record(request_id, ended)
    counts, last_byte = ours.fields, common.time_to_last_upstream_rx_byte
    return Record(
        request_id,
        ended,
        _cut_by(common.response_flags) if common.HasField("response_flags") else None,
        last_byte.seconds + last_byte.nanos / 1e9 if common.HasField("time_to_last_upstream_rx_byte") else None,
        entry.response.response_body_bytes,
        _count(counts.get(USAGE_PROMPT_TOKENS)),
        _count(counts.get(USAGE_COMPLETION_TOKENS)),
        _count(counts.get(USAGE_CACHED_TOKENS)),
    )


def _cut_by(flags: pb.ResponseFlags) -> EndCause | None:
    """A server that breaks off is the cause of whatever else is flagged: Envoy resets its client for it."""
    raised = {field.name for field, _ in flags.ListFields()}
    if raised & _BY_THE_SERVER:
        return EndCause.UPSTREAM_ERROR
    return EndCause.CLIENT_GONE if raised & _BY_THE_CLIENT else None


def _text(value: Value | None) -> str | None:
    text = "" if value is None else value.string_value
    return text if 0 < len(text) <= MAX_ID_CHARACTERS else None


def _count(value: Value | None) -> int | None:
    """A whole number that a token count can be; `None` for anything else that a server may write in its place."""
    if value is None or not value.HasField("number_value"):
        return None
    number = value.number_value
    return int(number) if 0 <= number <= MAX_TOKENS and number == int(number) else None
