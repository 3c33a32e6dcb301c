"""How metrics pages are fetched."""

import ssl
from dataclasses import dataclass, field

from yarl import URL

from epp.pool.endpoint import Endpoint, join_host_port
from epp.signals.pace import Pace


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Where a page is, how often and how patiently it is asked for, and whom to trust.

    Attributes:
        port: overrides the endpoint's own port; a metrics port that discovery gave to an endpoint overrides both.
        pace: how often.
        timeout_s: for connecting, headers and body together.
        max_page_bytes: a longer page, packed or unpacked, is an error.
        max_at_once: scrapes under way at any moment, over all endpoints.
        insecure_skip_verify: accept any certificate (llm-d's default, since model servers sign their own).
        ca_cert_path, client_cert_path, client_key_path: PEM files; empty means none.
    """

    scheme: str = "http"
    path: str = "/metrics"
    port: int | None = None
    pace: Pace = field(default_factory=Pace)
    timeout_s: float = 1.0
    max_page_bytes: int = 8 << 20
    max_at_once: int = 512
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def url(self, endpoint: Endpoint) -> URL:
        """The metrics page of `endpoint`."""
        host = endpoint.metrics_host or endpoint.host
        port = endpoint.metrics_port or self.port or endpoint.port
        return URL(f"{self.scheme}://{join_host_port(host, port)}{self.path}")

    def ssl_context(self) -> ssl.SSLContext | None:
        """What https connections are made with; `None` for plain http.

        Raises:
            ValueError: a file cannot be loaded; one line that names it.
        """
        if self.scheme != "https":
            return None
        context = ssl.create_default_context()
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            if self.ca_cert_path:
                context.load_verify_locations(self.ca_cert_path)
        except OSError as error:
            raise ValueError(f"{self.ca_cert_path}: cannot be loaded as CA certificates: {_reason(error)}") from error
        try:
            if self.client_cert_path:
                context.load_cert_chain(self.client_cert_path, self.client_key_path or None)
        except OSError as error:
            files = f"{self.client_cert_path} and its key {self.client_key_path or 'in the same file'}"
            raise ValueError(f"{files}: cannot be loaded as client certificate: {_reason(error)}") from error
        return context


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
