"""What a finished request teaches, or why it teaches nothing.

Only an answer that was good and came whole says how fast a server is. An error is fast, an aborted answer is short,
and neither may make a server attractive.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from epp.endings import EndCause, is_good
from epp.inference.request import Api, Request
from epp.latency.types import Prediction, Promise, Target
from epp.ledger import Outcome
from epp.plugins._prefill import prefill_row
from epp.scheduling.data import IntArray
from epp.scheduling.decision import Decision

GENERATING_APIS = frozenset(
    {Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.VLLM_GENERATE, Api.SGLANG_GENERATE, Api.OPAQUE}
)
"""APIs whose answers are generated token by token, and what may be one."""

MIN_COUNTED_EVENTS = 8
"""Without the server's own count, tokens are taken to be events. Off by one or two, a short answer would mislead."""


def is_empty(request: Request, outcome: Outcome) -> bool:
    """A stream that was seen to its end, good by its status, and in which nothing was generated although that was asked
    for: its server is broken, however it answers."""
    nothing = outcome.first_token_s is None and not outcome.usage.completion_tokens
    return outcome.streamed and nothing and outcome.seen_bytes > 0 and request.max_output_tokens != 0


class Measured(NamedTuple):
    """Milliseconds by target from dispatch on, above 0; `dropped`: why there are none, in one word."""

    actual_ms: dict[Target, float]
    dropped: str | None = None


def measure(request: Request, outcome: Outcome) -> Measured:
    """A stream has a TTFT and, with two tokens or more, a TPOT. Any other answer has an end-to-end time alone.

    TPOT is by tokens. The server's count is used if it is known; else, of one prompt's answer, events are counted, of
    which each is one token as a rule. They may have been counted for a while only: then their pace is TPOT.
    """
    if outcome.cause is not EndCause.NATURAL:
        return Measured({}, outcome.cause.value)
    if not is_good(outcome.status):
        return Measured({}, "status")
    if request.api not in GENERATING_APIS:
        return Measured({}, "api")
    sent_s, first_s, ended_s = outcome.dispatched_s, outcome.first_token_s, outcome.ended_s
    if ended_s <= sent_s or (first_s is not None and first_s <= sent_s):
        return Measured({}, "no_time")
    if not outcome.streamed:
        return Measured({Target.E2E: (ended_s - sent_s) * 1e3})
    if first_s is None:
        return Measured({}, "no_token")
    actual_ms = {Target.TTFT: (first_s - sent_s) * 1e3}
    tokens, last_s = _tokens(request, outcome)
    if tokens > 1 and last_s > first_s:
        actual_ms[Target.TPOT] = (last_s - first_s) * 1e3 / (tokens - 1)
    return Measured(actual_ms)


def _tokens(request: Request, outcome: Outcome) -> tuple[int, float]:
    """Tokens that came one after another, and when the last of them did; 0 when that is not known."""
    if len(request.prompts) > 1:
        return 0, outcome.ended_s  # several answers at once
    if outcome.usage.completion_tokens is not None:
        return outcome.usage.completion_tokens, outcome.ended_s
    if outcome.token_events >= MIN_COUNTED_EVENTS:
        return outcome.token_events, outcome.ended_s if outcome.counted_s is None else outcome.counted_s
    return 0, outcome.ended_s


def rows_at_work(decision: Decision) -> list[int]:
    """Rows of the decision's snapshot that may work for the request: the choice, its fallbacks, and who prefills."""
    rows = [decision.snapshot.row_by_id[endpoint.id] for endpoint in decision.endpoints]
    prefill = prefill_row(decision)
    return rows if prefill is None else [*rows, prefill]


def targets_by_row(
    decision: Decision, served_row: int, actual_ms: Mapping[Target, float]
) -> Mapping[int, Mapping[Target, float]]:
    """Of whom the measurements tell: TTFT of the server that prefilled, the rest of the one that answered."""
    prefill = prefill_row(decision)
    if prefill is None or Target.TTFT not in actual_ms:
        return {served_row: actual_ms}
    by_row: dict[int, dict[Target, float]] = {prefill: {Target.TTFT: actual_ms[Target.TTFT]}}
    for target, ms in actual_ms.items():
        if target is not Target.TTFT:
            by_row.setdefault(served_row, {})[target] = ms
    return by_row


def promises_of(prediction: Prediction, rows: IntArray, wanted: Iterable[int]) -> Mapping[int, Promise]:
    """What was promised for the rows `wanted`, as far as the prediction is about them.

    Args:
        rows: what the prediction is about, ascending.
    """
    promises = {}
    for row in wanted:
        position = int(np.searchsorted(rows, row))
        if position < rows.size and rows[position] == row:
            promises[row] = prediction.promise(position)
    return promises
