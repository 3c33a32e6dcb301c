"""Families about responses that are let go of, and the access log that tells how they ended."""

from epp.observe.families import Families


class AccessLogMetrics:
    """The observer of the access log and of exchanges that let go."""

    def __init__(self, families: Families) -> None:
        self.let_go = families.counter(
            "responses_let_go", "Responses whose ext_proc stream was ended before the response.", ()
        )
        self._relied_on = families.gauge(
            "access_log_relied_on", "Whether records of Envoy's access log come, so that responses can be let go of."
        )
        self._records = families.counter(
            "access_log_records",
            "Records of Envoy's access log about requests that are over, by what they were.",
            ("kind",),
        )

    def response_let_go(self) -> None:
        self.let_go[()].inc()

    def relied_on(self, relied_on: bool) -> None:
        self._relied_on[()].set(float(relied_on))

    def awaited_record_came(self) -> None:
        self._records["awaited",].inc()

    def awaited_record_is_missing(self) -> None:
        self._records["missing",].inc()

    def record_is_not_ours(self) -> None:
        self._records["not_ours",].inc()

    def log_message_is_unreadable(self) -> None:
        self._records["unreadable",].inc()
