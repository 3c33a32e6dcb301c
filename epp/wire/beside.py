"""What a message says beside its part: Envoy's modes, with the first message, and metadata.

It is the same in message after message, so it is read once and found again by its bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.struct_pb2 import Struct, Value

from epp.wire import ext_proc_pb2 as pb
from epp.wire.events import BodyMode
from epp.wire.names import ACCESS_LOG, DESTINATION_SERVED, DESTINATION_SUBSET, LB_NAMESPACE, SUBSET_NAMESPACE


@dataclass(frozen=True, slots=True)
class Modes:
    """What Envoy announces with its first message, and holds to from then on."""

    request: BodyMode
    response: BodyMode
    observing: bool  # Envoy sends copies and takes no answers


@dataclass(slots=True)
class Beside:
    """What a message says beside its part. Shared by all that say the same, so not to be changed.

    Attributes:
        modes: the announced ones; FULL_DUPLEX_STREAMED both ways when none are, as gateways use; `None` if one of them
            is none that we speak.
        subset: the addresses that the proxy limits the choice to; `None` if this message sets no limit. A limit that
            cannot be read allows nothing: to ignore it would send a request where it must not go.
        served_address: the server that Envoy says it used.
        access_log: Envoy's promise of access log records, as it stands there; see `epp.wire.names.ACCESS_LOG`.
    """

    modes: Modes | None
    subset: tuple[str, ...] | None
    served_address: str | None
    access_log: str | None


def read_beside(proto: pb.ProcessingRequest) -> Beside:
    metadata = proto.metadata_context.filter_metadata
    if not metadata:
        return Beside(_modes(proto), None, None, None)
    # `get`, for indexing a protobuf map would add the key.
    hint, lb = metadata.get(SUBSET_NAMESPACE), metadata.get(LB_NAMESPACE)
    subset = None if hint is None else _subset(hint.fields.get(DESTINATION_SUBSET))
    if lb is None:
        return Beside(_modes(proto), subset, None, None)
    return Beside(_modes(proto), subset, _text_in(lb, DESTINATION_SERVED), _text_in(lb, ACCESS_LOG))


def read_alone(behind: bytes) -> Beside | None:
    """Of bytes that are a message without a part; `None` if they hold one. Raises `DecodeError`."""
    proto = pb.ProcessingRequest.FromString(behind)
    return read_beside(proto) if proto.WhichOneof("request") is None else None


remembered = lru_cache(1024)(read_alone)


def _modes(proto: pb.ProcessingRequest) -> Modes | None:
    observing = proto.observability_mode
    if not proto.HasField("protocol_config"):
        return Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, observing)
    config = proto.protocol_config
    try:
        return Modes(BodyMode(config.request_body_mode), BodyMode(config.response_body_mode), observing)
    except ValueError:
        return None


def _text_in(struct: Struct, key: str) -> str | None:
    value = struct.fields.get(key)
    return (value.string_value or None) if value is not None else None


def _subset(hint: Value | None) -> tuple[str, ...] | None:
    if hint is None:
        return None
    match hint.WhichOneof("kind"):
        case "string_value":
            return _addresses([hint.string_value])
        case "list_value":
            # An entry that is no string reads as an empty one, and names no address.
            return _addresses(entry.string_value for entry in hint.list_value.values)
        case _:
            return ()


def _addresses(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(address for entry in entries for part in entry.split(",") if (address := part.strip()))


NOTHING: Final = read_beside(pb.ProcessingRequest())
