"""The first token is the first thing generated, not the first bytes that pass."""

import json

import pytest

from epp.inference.first_token import has_token
from epp.inference.request import Api
from epp.server.first_token import MAX_BYTES, FirstToken

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"hi data: {\\"}"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def watch(api=Api.CHAT, *, readable_events=True):
    return FirstToken(api, readable_events=readable_events)


def test_role_and_keep_alives_are_no_token():
    first = watch()
    assert [first.feed(chunk) for chunk in (ROLE, b": ping\n\n", TEXT, TEXT)] == [False, False, True, False]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_cut_of_chunks_does_not_matter(size):
    first, stream = watch(), ROLE + TEXT
    seen = [first.feed(stream[i : i + size]) for i in range(0, len(stream), size)]
    assert sum(seen) == 1
    assert seen.index(True) * size >= len(ROLE)


def test_role_and_text_in_one_chunk_are_a_token_at_once():
    assert watch().feed(ROLE + TEXT)


def test_what_stands_behind_the_first_token_is_counted_and_not_read(monkeypatch):
    read = []
    monkeypatch.setattr(
        "epp.server.first_token.has_token", lambda api, payload: read.append(payload) or has_token(api, payload)
    )
    first = watch()
    assert first.feed(ROLE + 500 * TEXT)
    assert (len(read), first.token_events) == (2, 500)


def test_what_is_no_event_stream_begins_with_its_first_byte():
    first = watch(readable_events=False)
    assert not first.feed(b"")
    assert first.feed(b'{"choices"')
    assert first.token_events == 0


def test_a_stream_without_a_token_has_no_first_token():
    first = watch()
    assert not first.feed(ROLE + b'data: {"choices":[],"usage":{"completion_tokens":0}}\n\n' + DONE)
    assert not first.seen


def test_looking_has_an_end():
    first, chunk = watch(), b": " + b"x" * 65_000 + b"\n"
    calls = 0
    while not first.feed(chunk):
        calls += 1
        assert calls < 100
    assert calls * len(chunk) <= MAX_BYTES


def test_a_long_opening_event_is_passed_over():
    opening = b'data: {"type":"response.created","response":{"instructions":"' + b"x" * 300_000 + b'"}}\n\n'
    first = watch(Api.RESPONSES)
    assert not first.feed(opening)
    assert first.feed(b'data: {"type":"response.output_text.delta","delta":"x"}\n\n')


def test_token_events_are_counted_from_the_first_token_and_text_cannot_forge_them():
    first = watch()
    for chunk in (ROLE, TEXT + TEXT, b": ping\n\n", TEXT, DONE):
        first.feed(chunk)
    assert first.token_events == 3


CHOICES = [
    ({"delta": {"role": "assistant"}}, False),
    ({"delta": {"role": "assistant", "content": "", "tool_calls": []}}, False),
    ({"delta": {"content": "x"}}, True),
    ({"delta": {"reasoning_content": "x"}}, True),
    ({"delta": {"tool_calls": [{"index": 0}]}}, True),
    ({"delta": {}, "finish_reason": "stop"}, True),
    ({"text": ""}, False),
    ({"text": " "}, True),
    ({"token_ids": [1]}, True),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_choices(choice, expected):
    assert has_token(Api.CHAT, json.dumps({"choices": [choice]}).encode()) is expected


@pytest.mark.parametrize(
    ("api", "event", "expected"),
    [
        (Api.MESSAGES, {"type": "message_start", "message": {}}, False),
        (Api.MESSAGES, {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, False),
        (Api.MESSAGES, {"type": "ping"}, False),
        (Api.MESSAGES, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}, True),
        (Api.MESSAGES, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}, False),
        (Api.MESSAGES, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, True),
        (Api.RESPONSES, {"type": "response.created", "response": {}}, False),
        (Api.RESPONSES, {"type": "response.content_part.added"}, False),
        (Api.RESPONSES, {"type": "response.reasoning_text.delta", "delta": "x"}, True),
        (Api.RESPONSES, {"type": "response.completed", "response": {}}, True),
        (Api.RESPONSES, {"type": "error", "error": {"message": "m"}}, False),
        (Api.SGLANG_GENERATE, {"text": "", "meta_info": {}}, False),
        (Api.SGLANG_GENERATE, {"text": "x", "meta_info": {}}, True),
        (Api.OPAQUE, {"anything": 1}, True),
        (Api.CHAT, {"error": {"message": "m"}}, False),
        (Api.CHAT, {"choices": [None, "x"]}, False),
        (Api.CHAT, {"choices": 7}, False),
        (Api.CHAT, ["a", "list"], False),
        (Api.OPAQUE, ["a", "list"], True),
    ],
)
def test_events_of_each_api(api, event, expected):
    assert has_token(api, json.dumps(event).encode()) is expected


@pytest.mark.parametrize("payload", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_what_cannot_be_read_is_a_token_only_where_the_format_is_not_known(payload):
    assert not has_token(Api.CHAT, payload)
    assert has_token(Api.OPAQUE, payload)
