"""What an exchange learns of a response, and when it lets it go: on the real pipeline, without a network."""

from collections.abc import Iterable

import orjson
import pytest
from envoy_messages import (
    FULL_DUPLEX,
    RECOMMENDED,
    Modes,
    log_record,
    name_of,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from picker_in_memory import Talk, World

from epp.endings import EndCause
from epp.inference.request import Usage
from epp.ledger import Outcome
from epp.server.access_log.awaiting import FIRST_STREAK, OVERDUE_S
from epp.server.watching import PACE_EVENTS, PACES_PER_S
from epp.wire.access_log import read_records
from epp.wire.events import BodyMode

HEAD = {":method": "POST", ":path": "/v1/completions"}
SSE = {"content-type": "text/event-stream"}
BODY = orjson.dumps({"model": "m", "prompt": "once upon a time " * 50, "stream": True})
TOKEN = b'data: {"choices":[{"index":0,"text":"x"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":64}}\n\n'
DONE = b"data: [DONE]\n\n"


class Site(World):
    """A picker whose Envoy keeps its promise of access log records, and what became of its requests."""

    def __init__(self, *, trusted: bool = True, watched_to_the_end: bool = False) -> None:
        super().__init__(watched_to_the_end=watched_to_the_end)
        self.outcomes: list[Outcome] = []
        count = self.metrics.requests.ended

        def remember(request, outcome):
            self.outcomes.append(outcome)
            count(request, outcome)

        self.metrics.requests.ended = remember
        while trusted and not self.access_log.relied_on:
            self.finish(self.ask())
        self.outcomes.clear()

    def ask(self, modes: Modes = RECOMMENDED, promise: str | None = "10s", body: bytes = BODY, **headers: str) -> Talk:
        first = request_headers({**HEAD, **headers}, modes=modes, promise=promise)
        return self.open().send(first, request_body(body))

    def name(self, talk: Talk) -> str:
        (name,) = filter(None, map(name_of, talk.replies))
        return name

    def finish(self, talk: Talk) -> None:
        """The whole response, and its record."""
        talk.send(response_headers(200, SSE), response_body(TOKEN, end=True))
        talk.close()
        self.record(talk)

    def record(self, talk: Talk, **fields) -> None:
        for record in read_records(log_record(self.name(talk), **fields)):
            assert self.access_log.deliver(record)

    def spend_paces(self) -> None:
        while self.watching.paces.take():
            pass

    @property
    def outcome(self) -> Outcome:
        (outcome,) = self.outcomes
        return outcome

    @property
    def let_go(self) -> float:
        return self.count("llm_d_epp_responses_let_go_total")


def streaming(site: Site, chunks: Iterable[bytes] = (TOKEN,), *, waits_s: float = 0.5, **options) -> Talk:
    """A stream that has begun. If it waited for that, there is no budget left to watch its pace."""
    talk = site.ask(**options)
    if waits_s:
        site.clock.advance(waits_s)
        site.spend_paces()
    talk.send(response_headers(200, SSE), *(response_body(chunk) for chunk in chunks))
    return talk


# --- when it is let go ----------------------------------------------------------------------------------------------


def test_with_its_first_token_a_response_is_let_go_and_its_record_ends_it():
    site = Site()
    talk = streaming(site)
    assert talk.exchange.finished
    assert talk.replies[-1].WhichOneof("response") == "response_body"  # the chunk has its answer
    talk.close()
    assert sum(site.held()) == 1
    assert site.outcomes == []
    site.clock.advance(4.5)
    site.record(talk, last_byte_s=3.5, prompt_tokens=9, completion_tokens=31, cached_tokens=4)
    outcome = site.outcome
    assert (outcome.cause, outcome.status, outcome.streamed) == (EndCause.NATURAL, 200, True)
    assert outcome.usage == Usage(9, 31, 4)
    assert outcome.response_bytes == 1234
    assert outcome.ttft_ms == pytest.approx(500)
    assert outcome.tpot_ms == pytest.approx(100)  # by Envoy's word of the last byte, not by when its record came
    assert site.let_go == 1
    site.assert_nothing_is_left()


def test_a_stream_that_opens_without_a_token_is_watched_until_there_is_one():
    site = Site()
    talk = streaming(site, [b": ping\n\n", b'data: {"choices":[{"index":0,"text":""}]}\n\n'])
    assert not talk.exchange.finished
    talk.send(response_body(TOKEN[:20]))
    assert not talk.exchange.finished
    talk.send(response_body(TOKEN[20:]))
    assert talk.exchange.finished


def test_a_response_that_ends_with_its_first_chunk_ends_by_itself():
    site = Site()
    talk = site.ask()
    talk.send(response_headers(200, SSE), response_body(TOKEN + USAGE + DONE, end=True))
    assert (site.outcome.cause, site.outcome.usage) == (EndCause.NATURAL, Usage(9, 64))
    talk.close()
    site.record(talk)
    assert site.let_go == 0
    site.assert_nothing_is_left()


KEPT = {
    "no promise": {"promise": None},
    "a promise that makes no sense": {"promise": "soon"},
    "full duplex: what is on its way would be lost": {"modes": FULL_DUPLEX},
    "full duplex of the response": {"modes": (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)},
    "a model to be given back its name": {"x-llm-d-model-name-rewrite": "m-v2"},
}


@pytest.mark.parametrize("why", KEPT)
def test_it_is_watched_to_its_end_where_it_cannot_be_let_go(why: str):
    site = Site()
    talk = streaming(site, [TOKEN] * 50, **KEPT[why])
    assert not talk.exchange.finished
    talk.send(response_body(USAGE), response_body(DONE, end=True))
    assert talk.exchange.finished
    assert (site.outcome.cause, site.outcome.usage) == (EndCause.NATURAL, Usage(9, 64))
    assert site.let_go == 0


def test_without_records_that_come_nothing_is_let_go():
    site = Site(trusted=False)
    talk = streaming(site, [TOKEN] * 100)
    assert not talk.exchange.finished
    for _ in range(FIRST_STREAK):
        site.finish(site.ask())
    talk.send(response_body(TOKEN))  # records come meanwhile
    assert talk.exchange.finished


def test_json_is_watched_to_its_end():
    site = Site()
    talk = site.ask()
    talk.send(response_headers(200, {"content-type": "application/json"}), response_body(b'{"usage":{"prompt_'))
    assert not talk.exchange.finished
    talk.send(response_body(b'tokens":3,"completion_tokens":5}}', end=True))
    assert site.outcome.usage == Usage(3, 5)
    assert not site.outcome.streamed


def test_one_that_is_sampled_is_watched_to_its_end_and_all_its_events_are_counted():
    site = Site(watched_to_the_end=True)
    talk = streaming(site, [TOKEN] * 100)
    talk.send(response_body(DONE, end=True))
    assert (site.outcome.token_events, site.outcome.counted_s) == (100, None)
    assert site.count("llm_d_epp_request_streaming_itl_seconds_count") == 100
    assert site.let_go == 0


# --- the pace -------------------------------------------------------------------------------------------------------


def test_some_per_second_are_watched_for_their_pace_before_they_are_let_go():
    site = Site()
    site.clock.advance(1.0)
    watched = [streaming(site, waits_s=0) for _ in range(5)]
    assert [talk.exchange.finished for talk in watched] == [False] + [True] * 4
    talk = watched[0]
    for _ in range(PACE_EVENTS - 1):
        assert not talk.exchange.finished
        site.clock.advance(0.1)
        talk.send(response_body(TOKEN))
    assert talk.exchange.finished
    began_s = site.clock.now_s - (PACE_EVENTS - 1) * 0.1
    site.clock.advance(5.0)
    site.record(talk, last_byte_s=5.0)
    outcome = site.outcome
    assert outcome.token_events == PACE_EVENTS
    assert outcome.counted_s == pytest.approx(began_s + (PACE_EVENTS - 1) * 0.1)
    assert PACES_PER_S == 1


@pytest.mark.parametrize("modes", [FULL_DUPLEX, RECOMMENDED])
def test_of_a_long_response_only_the_first_events_and_the_ends_are_looked_at(modes: Modes):
    site = Site()
    talk = streaming(site, modes=modes, promise=None)
    for _ in range(2_000):
        site.clock.advance(0.01)
        talk.send(response_body(TOKEN))
    talk.send(response_body(USAGE), response_body(DONE, end=True))
    outcome = site.outcome
    assert outcome.token_events == PACE_EVENTS
    assert outcome.usage == Usage(9, 64)
    assert outcome.response_bytes == 2_001 * len(TOKEN) + len(USAGE) + len(DONE)
    assert site.count("llm_d_epp_request_streaming_itl_seconds_count") == PACE_EVENTS - 1


# --- how it ended ---------------------------------------------------------------------------------------------------

CUTS = {
    "upstream_remote_reset": EndCause.UPSTREAM_ERROR,
    "upstream_protocol_error": EndCause.UPSTREAM_ERROR,
    "downstream_connection_termination": EndCause.CLIENT_GONE,
    "downstream_remote_reset": EndCause.CLIENT_GONE,
    "upstream_retry_limit_exceeded": EndCause.NATURAL,
}


@pytest.mark.parametrize("flag", CUTS)
@pytest.mark.parametrize("let_go", [True, False])
def test_the_record_tells_who_broke_off(flag: str, let_go: bool):
    site = Site(watched_to_the_end=not let_go)
    talk = streaming(site)
    assert talk.exchange.finished is let_go
    talk.close(cancelled=not let_go)
    assert sum(site.held()) == 1
    site.clock.advance(0.1)
    site.record(talk, flags=[flag], last_byte_s=0.55)
    assert site.outcome.cause is CUTS[flag]
    site.assert_nothing_is_left()


def test_a_record_that_comes_before_the_stream_ends_tells_as_well():
    site = Site(watched_to_the_end=True)
    talk = streaming(site)
    site.record(talk, flags=["upstream_remote_reset"])
    assert site.outcomes == []
    talk.close(cancelled=True)
    assert site.outcome.cause is EndCause.UPSTREAM_ERROR
    site.assert_nothing_is_left()


def test_a_stream_that_ends_unexplained_is_a_client_that_left_if_no_record_explains_it():
    site = Site(watched_to_the_end=True)
    talk = streaming(site)
    talk.close(cancelled=True)
    ended_s = site.clock.now_s
    site.clock.advance(OVERDUE_S)
    assert (site.outcome.cause, site.outcome.ended_s) == (EndCause.CLIENT_GONE, ended_s)
    site.assert_nothing_is_left()


def test_while_records_are_not_relied_on_nobody_waits_for_one():
    site = Site(trusted=False)
    talk = streaming(site)
    talk.close(cancelled=True)
    assert site.outcome.cause is EndCause.CLIENT_GONE
    assert sum(site.held()) == 0


def test_a_connection_that_is_lost_brings_no_record_and_no_blame():
    site = Site()
    talk = site.ask()
    talk.close(cancelled=True, lost=True)
    assert site.outcome.cause is EndCause.LOST
    site.clock.advance(100.0)
    assert site.access_log.relied_on
    site.assert_nothing_is_left()


def test_one_that_was_let_go_and_is_never_heard_of_again_is_lost_and_holds_nothing():
    site = Site()
    talk = streaming(site)
    talk.close()
    site.clock.advance(31.9)
    assert sum(site.held()) == 1
    site.clock.advance(0.2)
    assert site.outcome.cause is EndCause.LOST
    assert not site.access_log.relied_on
    site.assert_nothing_is_left()
    watched = streaming(site, [TOKEN] * 40)  # the next one is watched
    assert not watched.exchange.finished


def test_an_answer_of_envoys_own_counts_as_before():
    site = Site()
    talk = site.ask()
    talk.send(response_headers(503, {"content-type": "application/json"}), response_body(b"{}", end=True))
    assert site.outcome.cause is EndCause.UPSTREAM_ERROR


def test_a_route_that_comes_too_late_awaits_nothing():
    site = Site(trusted=False)
    observing = request_headers(HEAD, modes=RECOMMENDED, promise="10s") + b"\x50\x01"  # observability mode: no answers
    site.open().send(observing, request_body(BODY)).close()
    assert site.access_log.awaited == 0


def test_little_is_kept_of_one_that_was_let_go():
    site = Site()
    prompt = "x" * 1_000_000
    streaming(site, body=orjson.dumps({"model": "m", "prompt": prompt, "stream": True})).close()
    (awaited,) = site.access_log._awaited.values()
    assignment = awaited.on_record.assignment
    assert assignment.body is None
    assert assignment.request is assignment.cycle.request
    assert len(assignment.request.prompts) == 1
    assert not any(prompt.parts for prompt in assignment.request.prompts)
    assert not assignment.request.headers
    assert not assignment.cycle.data
