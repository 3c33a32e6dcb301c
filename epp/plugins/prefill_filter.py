"""Keeps the servers that can prefill for others."""

from epp.plugins._labels import LabelFilter
from epp.pool.endpoint import Endpoint

_ROLES = ("prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")


class PrefillFilter(LabelFilter):
    """Keeps role `prefill`, `encode-prefill`, `prefill-decode`, `both` and `encode-prefill-decode`.

    The role is the value of the label `llm-d.ai/role`; a server without one is dropped. Takes no parameters.
    """

    plugin_type = "prefill-filter"

    def keeps(self, endpoint: Endpoint) -> bool:
        return endpoint.role in _ROLES

    def drop_reason(self) -> str:
        return "role does not prefill"
