"""Keeps the servers that can decode."""

from epp.plugins._labels import LabelFilter
from epp.pool.endpoint import Endpoint

_ROLES = (None, "decode", "prefill-decode", "both", "encode-prefill-decode")


class DecodeFilter(LabelFilter):
    """Keeps role `decode`, `prefill-decode`, `both`, `encode-prefill-decode`, and servers without a role label.

    The role is the value of the label `llm-d.ai/role`. Takes no parameters.
    """

    plugin_type = "decode-filter"

    def keeps(self, endpoint: Endpoint) -> bool:
        return endpoint.role in _ROLES

    def drop_reason(self) -> str:
        return "role does not decode"
