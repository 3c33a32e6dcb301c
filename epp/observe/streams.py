"""Families about ext_proc streams and about the reading of signals."""

from epp.observe import buckets
from epp.observe.families import Families
from epp.signals.errors import ScrapeErrorKind


class StreamMetrics:
    """The observer of a transport."""

    def __init__(self, families: Families) -> None:
        self._in_flight = families.gauge("extproc_streams_inflight", "Open ext_proc streams.", adds_up=True)[()]
        self._duration_s = families.histogram(
            "extproc_stream_duration_seconds", "How long ext_proc streams were open.", buckets.STREAM_S
        )[()]
        self._ended = families.counter("extproc_streams", "Ended ext_proc streams, by gRPC status.", ("code",))

    def stream_opened(self) -> None:
        self._in_flight.inc()

    def stream_closed(self, code: str, duration_s: float) -> None:
        self._in_flight.dec()
        self._duration_s.observe(duration_s)
        self._ended[code,].inc()


class SignalMetrics:
    """What went wrong in reading signals. Both labels are plugin types, so there are few."""

    def __init__(self, families: Families) -> None:
        self.poll_errors = families.counter(
            "datalayer_poll_errors", "Failed reads of a signal source.", ("source_type",)
        )
        self.extract_errors = families.counter(
            "datalayer_extract_errors",
            "Pages that were read but made no sense.",
            ("source_type", "extractor_type"),
        )

    def scrape_failed(self, kind: ScrapeErrorKind, source_type: str, extractor_type: str) -> None:
        if kind.page_was_read:
            self.extract_errors[source_type, extractor_type].inc()
        else:
            self.poll_errors[source_type,].inc()
