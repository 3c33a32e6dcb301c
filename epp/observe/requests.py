"""Families about requests: how many, how large, how fast, how they ended.

A request counts in `request_total` once it is sent on; one that we answer ourselves is only an error. Latencies are
taken from requests that ended naturally; those of tokens only from 2xx answers, because an error page has no tokens.
Token counts are the model server's own, once per request.
"""

from epp.endings import EndCause
from epp.inference.request import Request
from epp.ledger import Outcome
from epp.observe import buckets
from epp.observe.cardinality import RequestLabels
from epp.observe.families import Families
from epp.scheduling.decision import Denial

MODEL_SERVER_ERROR = "ModelServerError"
EVICTED_ERROR = "ResourceExhausted"
# The only thing that can ask for a rewrite yet.
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
        )
        self.response_processing_s = histogram(
            "response_processing_duration_seconds",
            "Our own work on a response, over all its messages.",
            buckets.RESPONSE_PROCESSING_S,
        )
        self.rewrites = counter(
            "model_rewrite_decisions",
            "Requests sent on under another model name, by what asked for it.",
            ("model_rewrite_name", "model_name", "target_model"),
        )
        self.ends = counter("request_end", "How requests ended.", ("cause",))

    def routed(self, request: Request) -> None:
        labels = self._labels.of(request)
        self.total[labels].inc()
        self.running[labels].inc()
        self.size_bytes[labels].observe(request.body_bytes)
        if request.target_model != request.model:
            self.rewrites[REWRITE_BY_HEADER, *labels[:2]].inc()

    def refused(self, request: Request | None, denial: Denial, seconds: float) -> None:
        labels = self._labels.of(request or UNKNOWN_REQUEST)
        self.errors[*labels, denial.code].inc()
        self.ends[EndCause.REJECTED.value,].inc()
        self.processing_s[()].observe(seconds)

    def chunk_gap(self, request: Request, seconds: float) -> None:
        self.itl_s[self._labels.of(request)].observe(seconds)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Exactly once for each request that was routed."""
        labels = self._labels.of(request)
        self.running[labels].dec()
        self.ends[outcome.cause.value,].inc()
        self.processing_s[()].observe(outcome.dispatched_s - outcome.received_s)
        if outcome.response_processing_s > 0:
            self.response_processing_s[()].observe(outcome.response_processing_s)
        if error_code := error_code_of(outcome):
            self.errors[*labels, error_code].inc()
        self._count_tokens(labels, outcome)
        if outcome.cause is EndCause.NATURAL:
            self._measure(labels, outcome)

    def _count_tokens(self, labels: tuple[str, ...], outcome: Outcome) -> None:
        usage = outcome.usage
        if usage.prompt_tokens:
            self.input_tokens[labels].observe(usage.prompt_tokens)
        if usage.completion_tokens:
            self.output_tokens[labels].observe(usage.completion_tokens)
        if usage.cached_tokens is not None:
            self.cached_tokens[labels].observe(usage.cached_tokens)

    def _measure(self, labels: tuple[str, ...], outcome: Outcome) -> None:
        self.response_bytes[labels].observe(outcome.response_bytes)
        duration_s = outcome.ended_s - outcome.received_s
        if duration_s <= 0:
            return
        self.duration_s[labels].observe(duration_s)
        if outcome.status is None or not 200 <= outcome.status < 300:
            return
        if outcome.usage.completion_tokens:
            self.ntpot_s[labels].observe(duration_s / outcome.usage.completion_tokens)
        ttft_ms, tpot_ms = outcome.ttft_ms, outcome.tpot_ms
        if ttft_ms is not None and ttft_ms > 0:
            self.ttft_s[*labels, "true" if outcome.streamed else "false"].observe(ttft_ms / 1e3)
        if tpot_ms is not None and tpot_ms > 0:
            self.tpot_s[labels].observe(tpot_ms / 1e3)


def error_code_of(outcome: Outcome) -> str | None:
    """What to count against a request that was sent on; a client that left is nobody's error."""
    if outcome.cause is EndCause.EVICTED:
        return EVICTED_ERROR
    if outcome.cause is EndCause.UPSTREAM_ERROR or (outcome.status is not None and outcome.status >= 400):
        return MODEL_SERVER_ERROR
    return None
