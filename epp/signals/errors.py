"""What can go wrong when a metrics page is read."""

from enum import StrEnum

_MAX_DETAIL = 200


class ScrapeErrorKind(StrEnum):
    """Why a scrape failed."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"  # refused, reset, no route, name not found
    TLS = "tls"
    PROTOCOL = "protocol"  # not HTTP, or HTTP that breaks off
    STATUS = "status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    ENCODING = "encoding"  # packed in a way that cannot be unpacked
    NOT_METRICS = "not_metrics"
    NO_ENGINE_METRICS = "no_engine_metrics"
    INTERNAL = "internal"  # a fault of our own

    @property
    def page_was_read(self) -> bool:
        """The page came; it is what it says that is of no use."""
        return self in (ScrapeErrorKind.NOT_METRICS, ScrapeErrorKind.NO_ENGINE_METRICS)


class ScrapeError(Exception):
    """A scrape failed; the text is one short line for a log."""

    def __init__(self, kind: ScrapeErrorKind, detail: str) -> None:
        super().__init__(f"{kind}: {' '.join(detail.split())[:_MAX_DETAIL]}")
        self.kind = kind
