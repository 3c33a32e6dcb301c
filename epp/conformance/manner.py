"""How the stub speaks, beyond what it says."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from epp.conformance.http import FULL_DUPLEX_BOTH_WAYS, Modes

# Namespace to key to value.
Metadatas = Mapping[str, Mapping[str, Any]]


class HeaderForm(Enum):
    """Where a header's text stands: Envoy uses `raw_value`, other proxies `value`; with both, `raw_value` counts."""

    RAW = "raw_value"
    PLAIN = "value"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Manner:
    """
    Attributes:
        announce: send `protocol_config` with the first message. Old Envoys do not.
        observing: observability mode: copies only, no answers taken.
        max_headers: Envoy's limit of headers per message.
        compress: gzip each gRPC message.
        bytewise: send each message byte by byte.
    """

    modes: Modes = FULL_DUPLEX_BOTH_WAYS
    announce: bool = True
    observing: bool = False
    header_form: HeaderForm = HeaderForm.RAW
    max_headers: int = 100
    compress: bool = False
    bytewise: bool = False
    request_metadata: Metadatas | None = None
    response_metadata: Metadatas | None = None
    attributes: Metadatas | None = None


PLAIN = Manner()
