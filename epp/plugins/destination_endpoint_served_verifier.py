"""Tells the client which server answered. For conformance tests."""

from collections.abc import Mapping

from epp.scheduling.cycle import Cycle
from epp.scheduling.decision import Decision
from epp.scheduling.plugin import ResponseHeadersHook

SERVED_HEADER = "x-conformance-test-served-endpoint"


class DestinationEndpointServedVerifier(ResponseHeadersHook):
    """Sets the response header `x-conformance-test-served-endpoint` to the `ip:port` that answered by Envoy's word.

    The header is left out when Envoy does not say. Takes no parameters.
    """

    plugin_type = "destination-endpoint-served-verifier"

    def response_headers(
        self, cycle: Cycle, decision: Decision, status: int | None, headers: Mapping[str, str], served: str | None
    ) -> None:
        if served is not None:
            cycle.response_headers[SERVED_HEADER] = served
