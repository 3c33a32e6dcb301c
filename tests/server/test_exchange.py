"""One ext_proc stream from Envoy's first word to its last, on the real pipeline, without a network."""

from collections.abc import Callable

import orjson
import pytest
from envoy_messages import (
    DESTINATION,
    DROPPED_REASON,
    FULL_DUPLEX,
    RECOMMENDED,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from picker_in_memory import ADDRESSES, THREE_ADDRESSES, Talk, World

from epp.director import DirectorOptions
from epp.server import watching
from epp.wire.codec import ProtocolError

LONG_PROMPT = "once upon a time " * 200
COMPLETION = {"model": "m", "prompt": LONG_PROMPT, "stream": True, "max_tokens": 8}
SSE = {"content-type": "text/event-stream"}
HEAD = {":method": "POST", ":path": "/v1/completions"}
END_METRIC = "llm_d_epp_request_end_total"


def routed_to(talk: Talk) -> list[str]:
    """The addresses of the answer that routed, in order."""
    (destination,) = [h[DESTINATION] for r in talk.replies if DESTINATION in (h := set_headers(r))]
    return destination.split(",")


def refusal(talk: Talk) -> tuple[int, str]:
    """Status and reason of the answer to the client, which is the last word."""
    *_, last = talk.replies
    assert last.WhichOneof("response") == "immediate_response"
    assert orjson.loads(last.immediate_response.body)["error"]
    return last.immediate_response.status.code, set_headers(last)[DROPPED_REASON]


def answer(talk: Talk, *, served: str | None = None, status: int = 200, usage: bytes = b"") -> None:
    """A whole streamed response."""
    talk.send(response_headers(status, SSE, served=served), response_body(b'data: {"x":1}\n\n'), response_body(usage))
    talk.send(response_body(b"data: [DONE]\n\n", end=True))


# --- the request --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [FULL_DUPLEX, RECOMMENDED])
def test_a_request_is_reserved_before_its_reply_and_released_with_the_last_byte(modes) -> None:
    world = World()
    talk = world.open().send(request_headers(HEAD, modes=modes))
    assert world.ledger.open_streams() == 0
    replies = talk.exchange.receive(request_body(orjson.dumps(COMPLETION)))
    assert replies
    assert sum(world.held()) == 1
    talk.send(response_headers(200, SSE), response_body(b"data: {}\n\n"))
    assert sum(world.held()) == 1
    talk.send(response_body(b"data: [DONE]\n\n", end=True))
    world.assert_nothing_is_left()
    assert talk.exchange.finished
    assert world.ends() == {"natural": 1}


def test_a_body_that_does_not_come_is_408() -> None:
    world = World()
    talk = world.open().send(request_headers(HEAD), request_body(b'{"mod', end=False))
    world.clock.advance(59.9)
    assert talk.replies == []
    world.clock.advance(0.2)
    assert refusal(talk) == (408, "rejected-too-slow")
    assert talk.stream.finished
    talk.close()
    world.assert_nothing_is_left()
    assert world.ends() == {"rejected": 1}


def test_a_request_of_hours_stays_counted_until_its_stream_ends() -> None:
    world = World()
    talk = world.post(COMPLETION)
    world.clock.advance(20 * 60)
    talk.send(response_headers(200, SSE), response_body(b"data: {}\n\n"))
    world.clock.advance(6 * 60 * 60)
    assert sum(world.held()) == 1
    assert not talk.stream.finished
    talk.close(cancelled=True)
    world.assert_nothing_is_left()


def test_a_body_over_the_cap_is_413_and_nothing_of_it_is_kept() -> None:
    world = World(max_request_body_bytes=1000)
    talk = world.open().send(request_headers(HEAD), request_body(b"x" * 600, end=False))
    assert talk.replies == []
    talk.send(request_body(b"x" * 600, end=False))
    assert refusal(talk) == (413, "rejected-too-large")
    assert talk.send(request_body(b"x", end=True)).replies == talk.replies[:1]
    talk.close()
    world.assert_nothing_is_left()


@pytest.mark.parametrize(("path", "shape"), [("/v1/chat/completions", {"error"}), ("/v1/messages", {"type", "error"})])
def test_an_error_has_the_shape_of_the_clients_api(path: str, shape: set[str]) -> None:
    talk = World().post(b"{not json", path=path)
    assert refusal(talk) == (400, "rejected-bad-request")
    assert shape <= set(orjson.loads(talk.replies[-1].immediate_response.body))


def test_prefer_if_available_is_412_until_a_server_has_the_prompt_cached() -> None:
    world = World()
    prefer = {"prefer": "Respond-Async, IF-available;x=1"}
    refused = world.post(COMPLETION, headers=prefer)
    assert refusal(refused) == (412, "rejected-not-cached")
    answer(first := world.post(COMPLETION))
    again = world.post(COMPLETION, headers=prefer)
    assert routed_to(again) == routed_to(first)
    again.close()
    world.assert_nothing_is_left()


def test_the_proxys_subset_bounds_the_choice() -> None:
    world = World()
    for address in ADDRESSES:
        assert routed_to(world.post(COMPLETION, subset=f"{address},10.9.9.9:1")) == [address]
    assert refusal(world.post(COMPLETION, subset="10.9.9.9:1")) == (503, "rejected-no-endpoints")
    ignoring = World(director=DirectorOptions(use_subset=False))
    assert set(routed_to(ignoring.post(COMPLETION, subset="10.9.9.9:1"))) <= set(ADDRESSES)


def test_only_what_may_be_shed_is_refused_by_a_full_pool() -> None:
    world = World(director=DirectorOptions(objectives={"batch": -1, "chat": 1}))
    full = world.store.snapshot().signals[0].__class__(20.0, 10.0, 0.9)
    for address in ADDRESSES:
        world.report(address, full)
    shed = world.post(COMPLETION, headers={"x-llm-d-inference-objective": "batch"})
    assert refusal(shed) == (429, "rejected-saturated")
    assert set_headers(shed.replies[-1])["retry-after"] == "1"
    for headers in ({}, {"x-llm-d-inference-objective": "chat"}, {"x-llm-d-inference-objective": "unknown"}):
        assert routed_to(world.post(COMPLETION, headers=headers))
    assert world.ends() == {"rejected": 1}


def test_a_request_without_a_body_leaves_no_trace() -> None:
    world = World()
    talk = world.get()
    assert set(routed_to(talk)) <= set(ADDRESSES)
    assert world.ledger.open_streams() == 0
    talk.send(response_headers(200, end=True))
    assert set(world.prefix_blocks().values()) <= {0}
    world.assert_nothing_is_left()
    assert world.ends() == {"natural": 1}


def test_a_model_is_rewritten_on_the_way_there_and_back() -> None:
    world = World()
    body = b'{ "prompt":"x",  "model" : "m", "seed": 9007199254740993 }'
    talk = world.post(body, headers={"x-llm-d-model-name-rewrite": "m-v2"})
    sent = b"".join(r.request_body.response.body_mutation.streamed_response.body for r in talk.replies)
    assert sent == body.replace(b'"m"', b'"m-v2"')
    talk.send(response_headers(200, {"content-type": "application/json"}))
    talk.send(response_body(b'{"model":"m-'), response_body(b'v2","choices":[]}', end=True))
    got = b"".join(r.response_body.response.body_mutation.streamed_response.body for r in talk.replies)
    assert got == b'{"model":"m","choices":[]}'
    world.assert_nothing_is_left()


def test_scores_are_in_the_metadata_when_asked_for() -> None:
    def metadata(world: World) -> dict:
        talk = world.post(COMPLETION)
        (found,) = [dict(r.dynamic_metadata["envoy.lb"]) for r in talk.replies if r.HasField("dynamic_metadata")]
        return found

    with_scores = metadata(World(director=DirectorOptions(emit_scores=True)))
    assert with_scores[DESTINATION] in ADDRESSES
    assert any(set(v) == set(ADDRESSES) for k, v in with_scores.items() if k != DESTINATION)
    assert set(metadata(World())) == {DESTINATION}


# --- the response -------------------------------------------------------------------------------------------------


def test_what_is_served_elsewhere_is_counted_there() -> None:
    """The ledger moves with the response's headers, and the fallback has the prompt cached from now on."""
    world = World(THREE_ADDRESSES)
    talk = world.post(COMPLETION)
    first, second, _ = routed_to(talk)
    talk.send(response_headers(200, SSE, served=second))
    held = dict(zip(ADDRESSES, world.held(), strict=True))
    assert (held[first], held[second], sum(held.values())) == (0, 1, 1)
    assert world.prefix_blocks()[world.id_of(second)] > 0
    talk.send(response_body(b"data: {}\n\n"), response_body(b"", end=True))
    world.assert_nothing_is_left()


def test_an_answer_from_outside_the_pool_is_counted_where_it_was_planned() -> None:
    world = World()
    talk = world.post(COMPLETION)
    held = world.held()
    talk.send(response_headers(200, SSE, served="10.9.9.9:1"))
    assert world.held() == held
    talk.close()
    world.assert_nothing_is_left()


def test_usage_is_read_from_the_last_events() -> None:
    world = World()
    usage = b'data: {"usage":{"prompt_tokens":11,"completion_tokens":5}}\n\n'
    answer(world.post(COMPLETION), usage=usage)
    assert world.count("llm_d_epp_request_output_tokens_sum") == 5
    assert world.count("llm_d_epp_request_input_tokens_sum") == 11


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (500, {"content-type": "text/html"}, b"<html>oops</html>"),
        (200, {"content-type": "application/json"}, b'{"usage": {'),
        (200, SSE, b"data: {\n\n"),
        (503, {}, b""),
        (404, {"content-type": "application/json"}, b'{"error": {"message": "no such model"}}'),
    ],
)
@pytest.mark.parametrize("modes", [FULL_DUPLEX, RECOMMENDED])
def test_an_answer_that_is_no_json_and_no_stream_ends_like_any_other(status, headers, body, modes) -> None:
    world = World()
    talk = world.post(COMPLETION, modes=modes)
    from_server = {"x-envoy-upstream-service-time": "3", **headers}
    talk.send(response_headers(status, from_server, end=not body))
    if body:
        talk.send(response_body(body, end=True))
    world.assert_nothing_is_left()
    assert world.ends() == {"natural": 1}
    errors = world.count("llm_d_epp_request_error_total", error_code="ModelServerError")
    assert errors == (1 if status >= 400 else 0)


# --- every way to end ---------------------------------------------------------------------------------------------

Ending = Callable[[World, Talk], None]
WAYS: dict[str, tuple[Ending, str]] = {
    "half-closed before the response": (lambda _, t: t.close(), "client_gone"),
    "reset before the response": (lambda _, t: t.close(cancelled=True), "client_gone"),
    "reset in the response": (
        lambda _, t: (t.send(response_headers(200, SSE), response_body(b"data")), t.close(cancelled=True)),
        "client_gone",
    ),
    "lost with its connection": (lambda _, t: t.close(cancelled=True, lost=True), "lost"),
    "the last byte": (lambda _, t: answer(t), "natural"),
    "trailers": (
        lambda _, t: t.send(response_headers(200, SSE), response_body(b"data"), response_trailers()),
        "natural",
    ),
    "headers alone": (lambda _, t: t.send(response_headers(204, end=True)), "natural"),
    "a server that never answered": (lambda _, t: t.send(response_headers(503, end=True)), "upstream_error"),
    "closed twice": (lambda _, t: (t.close(cancelled=True), t.close()), "client_gone"),
    "closed after the end": (lambda _, t: (answer(t), t.close(cancelled=True)), "natural"),
    "an endpoint that left meanwhile": (lambda w, t: (w.store.replace(()), t.close()), "client_gone"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("modes", [FULL_DUPLEX, RECOMMENDED])
def test_a_reservation_is_released_exactly_once(way: str, modes) -> None:
    world = World()
    end, cause = WAYS[way]
    end(world, world.post(COMPLETION, modes=modes))
    assert not any(world.ledger.totals())
    assert world.ledger.open_streams() == 0
    assert world.count("llm_d_epp_request_running") == 0
    assert world.ends() == {cause: 1}


@pytest.mark.parametrize("closed_before", [False, True])
def test_the_last_reply_does_not_wait_for_the_end_to_be_counted(closed_before: bool) -> None:
    world = World()
    talk = world.post(COMPLETION)
    talk.send(response_headers(200, SSE))
    assert talk.exchange.receive(response_body(b"data: [DONE]\n\n", end=True))
    assert sum(world.held()) == 1
    if closed_before:
        talk.close(cancelled=True)
        assert world.ends() == {"natural": 1}
    (put_off,) = talk.stream.put_off
    put_off()
    talk.close()
    world.assert_nothing_is_left()
    assert world.ends() == {"natural": 1}


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff", b"", request_headers(HEAD)])
def test_a_peer_that_breaks_the_protocol_is_lost_not_gone(nonsense: bytes) -> None:
    world = World()
    talk = world.post(COMPLETION)
    with pytest.raises(ProtocolError):
        talk.send(nonsense)
    talk.close()
    world.assert_nothing_is_left()
    assert world.ends() == {"lost": 1}


def test_a_bug_in_reading_usage_costs_the_usage_and_not_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError

    world = World()
    monkeypatch.setattr(watching, "first_usage", explode)
    talk = world.post(COMPLETION)
    with pytest.raises(ZeroDivisionError):
        answer(talk)
    talk.close()
    world.assert_nothing_is_left()
    assert world.ends() == {"natural": 1}


@pytest.mark.parametrize("hook", ["response_started", "response_body"])
def test_a_bug_in_the_middle_releases_when_the_stream_ends(monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError

    world = World()
    talk = world.post(COMPLETION)
    monkeypatch.setattr(world.director, hook, explode)
    with pytest.raises(ZeroDivisionError):
        talk.send(response_headers(200, SSE), response_body(b"data: {}\n\n", end=True))
    talk.close()
    world.assert_nothing_is_left()
    assert world.ends() == {"lost": 1}


def test_streams_of_one_request_id_are_counted_apart() -> None:
    world = World()
    talks = [world.post(COMPLETION, headers={"x-request-id": "same"}) for _ in range(50)]
    assert sum(world.held()) == world.ledger.open_streams() == 50
    for left, talk in zip(reversed(range(50)), talks, strict=True):
        talk.close(cancelled=True)
        assert sum(world.held()) == left
    world.assert_nothing_is_left()


# --- any order of anything ----------------------------------------------------------------------------------------

EVENTS: dict[str, bytes] = {
    "request headers": request_headers(HEAD),
    "request headers, buffered": request_headers(HEAD, modes=RECOMMENDED),
    "request headers, end": request_headers({":method": "GET", ":path": "/v1/models"}, end=True),
    "request body": request_body(b'{"model":"m","prompt":"hello"', end=False),
    "request body, end": request_body(b"}"),
    "whole request body": request_body(orjson.dumps(COMPLETION)),
    "large request body": request_body(b"x" * 3000, end=False),
    "response headers": response_headers(200, SSE, served=ADDRESSES[0]),
    "response headers, end": response_headers(503, end=True),
    "response body": response_body(b'data: {"usage":{"completion_tokens":1}}\n\n'),
    "response body, end": response_body(b"data: [DONE]\n\n", end=True),
    "response trailers": response_trailers(),
    "garbage": b"\xff",
}
SANE = ["request headers", "whole request body", "response headers", "response body", "response body, end"]
STEPS = st.sampled_from([*EVENTS, "reset", "half-close", "wait", "pool gone", "pool back"])


@given(sane=st.integers(0, len(SANE)), steps=st.lists(st.tuples(STEPS, st.integers(0, 2)), max_size=14))
@settings(max_examples=150, deadline=None)
def test_no_order_of_events_leaves_a_reservation_or_speaks_after_the_end(sane: int, steps: list) -> None:
    """Three streams interleaved on one picker, the first some way into a sane exchange. A stream ends by its own
    end, by a protocol error, or with the connection; the transport tells us so once, and then nothing may be sent."""
    world = WORLD
    ends_before = sum(world.ends().values())
    talks = [world.open().send(*(EVENTS[name] for name in SANE[:sane])), world.open(), world.open()]
    begun, over = {0} if sane else set(), set()
    if talks[0].exchange.finished:
        talks[0].close()
        over.add(0)
    for step, index in steps:
        talk = talks[index]
        if step == "wait":
            world.clock.advance(40)
        elif step == "pool gone":
            pool = world.store.snapshot().endpoints
            world.store.replace(())
            world.store.replace(pool[:1])
        elif step == "pool back":
            world.reset_pool()
        elif index in over:
            continue
        elif step in ("reset", "half-close"):
            talk.close(cancelled=step == "reset")
            over.add(index)
        else:
            begun.add(index)
            try:
                talk.send(EVENTS[step])
            except ProtocolError:
                talk.close()
                over.add(index)
        for number, other in enumerate(talks):
            if number not in over and (other.exchange.finished or other.stream.finished):
                other.close()
                over.add(number)
    for index, talk in enumerate(talks):
        if index not in over:
            talk.close(cancelled=True)
        said = len(talk.replies)
        for event in EVENTS.values():
            talk.send(event)
        world.clock.advance(100)
        talk.close()
        assert len(talk.replies) == said
        kinds = [r.WhichOneof("response") for r in talk.replies]
        assert "immediate_response" not in kinds[:-1]
    assert not any(world.ledger.totals())
    assert world.ledger.open_streams() == 0
    assert world.timers_left() == 0
    assert world.count("llm_d_epp_request_running") == 0
    assert sum(world.ends().values()) - ends_before <= len(begun)
    world.reset_pool()


WORLD = World(max_request_body_bytes=2000)
