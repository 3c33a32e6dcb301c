"""Families about requests: how many, how large, how fast, how they ended.

A request counts in `request_total` once it is sent on; one that we answer ourselves is only an error. Latencies are
taken from requests that ended naturally; those of tokens only from 2xx answers, because an error page has no tokens.
Token counts are the model server's own, once per request.
"""

from epp.endings import EndCause, is_good
from epp.inference.request import Request, Usage
from epp.ledger import Outcome
from epp.observe import buckets
from epp.observe.cardinality import LabelSet, RequestLabels
from epp.observe.families import Families
from epp.scheduling.decision import Denial

MODEL_SERVER_ERROR = "ModelServerError"
EVICTED_ERROR = "ResourceExhausted"
# What else asks for a rewrite has a name of its own.
REWRITE_BY_HEADER = "request-header"
# Labels of a request that was refused before anything was known of it.
UNKNOWN_REQUEST = Request(id="")


class RequestMetrics:
    def __init__(self, families: Families, labels: RequestLabels) -> None:
        self._labels = labels
        by_request = RequestLabels.NAMES
        counter, gauge, histogram = families.counter, families.gauge, families.histogram

        self.total = counter("request", "Requests sent on to a model server.", by_request)
        self.errors = counter(
            "request_error",
            "Requests refused, or answered by a model server with an error.",
            (*by_request, "error_code"),
        )
        self.running = gauge("request_running", "Requests sent on and not ended.", by_request, adds_up=True)
        self.size_bytes = histogram("request_size_bytes", "Size of request bodies.", buckets.REQUEST_BYTES, by_request)
        self.response_bytes = histogram(
            "response_size_bytes", "Size of response bodies.", buckets.RESPONSE_BYTES, by_request
        )
        self.input_tokens = histogram("request_input_tokens", "Prompt tokens.", buckets.INPUT_TOKENS, by_request)
        self.output_tokens = histogram("request_output_tokens", "Generated tokens.", buckets.OUTPUT_TOKENS, by_request)
        self.cached_tokens = histogram(
            "request_cached_tokens", "Prompt tokens found in the prefix cache.", buckets.INPUT_TOKENS, by_request
        )
        self.duration_s = histogram(
            "request_duration_seconds", "Receipt to the response's end.", buckets.GENERAL_S, by_request
        )
        self.ntpot_s = histogram(
            "request_ntpot_seconds",
            "Receipt to the response's end, per generated token.",
            buckets.NTPOT_S,
            by_request,
        )
        self.ttft_s = histogram(
            "request_ttft_seconds",
            "Receipt to the first token, or to the first byte of a response that does not stream.",
            buckets.TTFT_S,
            (*by_request, "streaming"),
        )
        self.tpot_s = histogram(
            "request_streaming_tpot_seconds",
            "Time per generated token after the first, of streamed responses.",
            buckets.TPOT_S,
            by_request,
        )
        self.itl_s = histogram(
            "request_streaming_itl_seconds",
            "Between two chunks of a streamed response; a chunk may hold several tokens.",
            buckets.ITL_S,
            by_request,
        )
        self.processing_s = histogram(
            "request_processing_duration_seconds",
            "Receipt of a request's headers to the answer about it.",
            buckets.REQUEST_PROCESSING_S,
        )[()]
        self.response_processing_s = histogram(
            "response_processing_duration_seconds",
            "Our own work on a response, over all its messages.",
            buckets.RESPONSE_PROCESSING_S,
        )[()]
        self.rewrites = counter(
            "model_rewrite_decisions",
            "Requests sent on under another model name, by what asked for it.",
            ("model_rewrite_name", "model_name", "target_model"),
        )
        self.ends = counter("request_end", "How requests ended.", ("cause",))

        self._series: dict[LabelSet, _Series] = {}

    def routed(self, request: Request) -> None:
        series = self._series_of(request)
        series.total.inc()
        series.running.inc()
        series.size_bytes.observe(request.body_bytes)
        if request.target_model != request.model:
            self.rewrites[request.rewritten_by or REWRITE_BY_HEADER, *series.labels[:2]].inc()

    def refused(self, request: Request | None, denial: Denial, seconds: float) -> None:
        labels = self._labels.of(request or UNKNOWN_REQUEST)
        self.errors[*labels, denial.code].inc()
        self.ends[EndCause.REJECTED.value,].inc()
        self.processing_s.observe(seconds)

    def chunk_gap(self, request: Request, seconds: float) -> None:
        self._series_of(request).itl_s.observe(seconds)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Exactly once for each request that was routed."""
        series = self._series_of(request)
        series.running.dec()
        self.ends[outcome.cause.value,].inc()
        self.processing_s.observe(outcome.dispatched_s - outcome.received_s)
        if outcome.response_processing_s > 0:
            self.response_processing_s.observe(outcome.response_processing_s)
        if error_code := error_code_of(outcome):
            self.errors[*series.labels, error_code].inc()
        _count_tokens(series, outcome.usage)
        if outcome.cause is EndCause.NATURAL:
            _measure(series, outcome)

    def _series_of(self, request: Request) -> "_Series":
        labels = self._labels.of(request)
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(self, labels)
        return series


class _Series:
    """The series of one set of labels, found once: a request counts in a dozen of them."""

    __slots__ = (
        "cached_tokens",
        "duration_s",
        "input_tokens",
        "itl_s",
        "labels",
        "ntpot_s",
        "output_tokens",
        "response_bytes",
        "running",
        "size_bytes",
        "total",
        "tpot_s",
        "ttft_by_streamed_s",
    )

    def __init__(self, families: RequestMetrics, labels: LabelSet) -> None:
        self.labels = labels
        self.total = families.total[labels]
        self.running = families.running[labels]
        self.size_bytes = families.size_bytes[labels]
        self.response_bytes = families.response_bytes[labels]
        self.input_tokens = families.input_tokens[labels]
        self.output_tokens = families.output_tokens[labels]
        self.cached_tokens = families.cached_tokens[labels]
        self.duration_s = families.duration_s[labels]
        self.ntpot_s = families.ntpot_s[labels]
        self.ttft_by_streamed_s = tuple(families.ttft_s[*labels, streaming] for streaming in ("false", "true"))
        self.tpot_s = families.tpot_s[labels]
        self.itl_s = families.itl_s[labels]


def _count_tokens(series: _Series, usage: Usage) -> None:
    prompt_tokens, completion_tokens, cached_tokens = usage
    if prompt_tokens:
        series.input_tokens.observe(prompt_tokens)
    if completion_tokens:
        series.output_tokens.observe(completion_tokens)
    if cached_tokens is not None:
        series.cached_tokens.observe(cached_tokens)


def _measure(series: _Series, outcome: Outcome) -> None:
    series.response_bytes.observe(outcome.response_bytes)
    duration_s = outcome.ended_s - outcome.received_s
    if duration_s <= 0:
        return
    series.duration_s.observe(duration_s)
    if not is_good(outcome.status):
        return
    if outcome.usage.completion_tokens:
        series.ntpot_s.observe(duration_s / outcome.usage.completion_tokens)
    ttft_ms, tpot_ms = outcome.ttft_ms, outcome.tpot_ms
    if ttft_ms is not None and ttft_ms > 0:
        series.ttft_by_streamed_s[outcome.streamed].observe(ttft_ms / 1e3)
    if tpot_ms is not None and tpot_ms > 0:
        series.tpot_s.observe(tpot_ms / 1e3)


def error_code_of(outcome: Outcome) -> str | None:
    """What to count against a request that was sent on; a client that left is nobody's error."""
    if outcome.cause is EndCause.EVICTED:
        return EVICTED_ERROR
    if outcome.cause is EndCause.UPSTREAM_ERROR or (outcome.status is not None and outcome.status >= 400):
        return MODEL_SERVER_ERROR
    return None
