"""Keeps the servers that can encode pictures and the like for others."""

from epp.plugins._labels import LabelFilter
from epp.pool.endpoint import Endpoint

_ROLES = ("encode", "encode-prefill", "encode-prefill-decode")


class EncodeFilter(LabelFilter):
    """Keeps role `encode`, `encode-prefill` and `encode-prefill-decode`.

    The role is the value of the label `llm-d.ai/role`; a server without one is dropped. Takes no parameters.
    """

    plugin_type = "encode-filter"

    def keeps(self, endpoint: Endpoint) -> bool:
        return endpoint.role in _ROLES

    def drop_reason(self) -> str:
        return "role does not encode"
