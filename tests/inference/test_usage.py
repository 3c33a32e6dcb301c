"""Token counts in what vLLM, SGLang, OpenAI and Anthropic answer."""

import json
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.inference.request import Api, Usage
from epp.inference.usage import merge_sse_usage, usage_from_ends, usage_from_json


def merged(api, *payloads):
    return reduce(lambda usage, payload: merge_sse_usage(api, payload, usage), payloads, Usage())


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 13, "total_tokens": 16, "completion_tokens": 3}, (13, 3, None)),
        ({"prompt_tokens": 13, "completion_tokens": 3, "prompt_tokens_details": None}, (13, 3, None)),
        ({"prompt_tokens": 13, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}, (13, 3, 8)),
        ({"input_tokens": 13, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}, (13, 3, 8)),
        ({"input_tokens": 13, "output_tokens": 3, "cache_read_input_tokens": 8}, (13, 3, 8)),
        ({"prompt_tokens": "13", "completion_tokens": "3"}, (13, 3, None)),
        ({"prompt_tokens": 13, "total_tokens": 13}, (13, None, None)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0, None)),
        ({"prompt_tokens": -1, "completion_tokens": 2**40}, (None, None, None)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, (None, None, None)),
        ({"prompt_tokens": 1.5, "completion_tokens": 3.0}, (None, 3, None)),
        ({"prompt_tokens": "1e3", "completion_tokens": "-1"}, (None, None, None)),
        ({"prompt_tokens": True, "completion_tokens": [3]}, (None, None, None)),
        ({"prompt_tokens": 10**400}, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_usage_of_a_json_body(usage, expected):
    body = json.dumps({"id": "x", "model": "m", "choices": [], "usage": usage}).encode()
    found = usage_from_json(Api.CHAT, body)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == expected


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>usage</html>", b'{"usage":{', b'{"usage":null}', b'[{"usage":{}}]', b'{"usage":{"a":' + b"[" * 9999],
)
def test_a_body_without_usage_says_nothing(body):
    assert usage_from_json(Api.CHAT, body) == Usage()
    assert merge_sse_usage(Api.CHAT, body, Usage(1, 2, 3)) == Usage(1, 2, 3)


def test_generated_text_that_looks_like_usage_is_no_usage():
    body = json.dumps({"choices": [{"text": '"usage":{"prompt_tokens":9}'}]}).encode()
    assert usage_from_json(Api.COMPLETIONS, body) == Usage()


def test_opaque_responses_are_not_read():
    assert usage_from_json(Api.OPAQUE, b'{"usage":{"prompt_tokens":1}}') == Usage()
    assert merge_sse_usage(Api.OPAQUE, b'{"usage":{"prompt_tokens":1}}', Usage()) == Usage()


def test_vllm_stream_with_a_usage_chunk():
    assert merged(
        Api.COMPLETIONS,
        b'{"id":"cmpl-1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":" operator"}]}',
        b'{"id":"cmpl-1","object":"text_completion","model":"tiny","choices":[],'
        b'"usage":{"prompt_tokens":4,"total_tokens":8,"completion_tokens":4},"system_fingerprint":"vllm"}',
        b"[DONE]",
    ) == Usage(4, 4)


def test_continuous_usage_ends_with_the_last_word():
    chunk = b'{"choices":[],"usage":{"prompt_tokens":13,"total_tokens":14,"completion_tokens":%d}}'
    assert merged(Api.CHAT, *(chunk % n for n in range(4))) == Usage(13, 3)


def test_anthropic_usage_is_spread_over_two_events():
    assert merged(
        Api.MESSAGES,
        b'{"type":"message_start","message":{"model":"m","usage":'
        b'{"input_tokens":100,"cache_read_input_tokens":80,"output_tokens":1}}}',
        b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"ja"},"index":0}',
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}',
        b'{"type":"message_stop"}',
    ) == Usage(100, 7, 80)


def test_anthropic_counts_of_zero_do_not_replace():
    start = b'{"type":"message_start","message":{"usage":{"input_tokens":13,"output_tokens":0}}}'
    delta = b'{"type":"message_delta","usage":{"input_tokens":0,"output_tokens":3}}'
    assert merged(Api.MESSAGES, start, delta) == Usage(13, 3)


def test_a_count_that_is_known_later_replaces_zero():
    start = b'{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}'
    delta = b'{"type":"message_delta","usage":{"input_tokens":13,"output_tokens":3}}'
    assert merged(Api.MESSAGES, start, delta) == Usage(13, 3)


def test_an_anthropic_stream_broken_off_does_not_report_its_first_guess():
    start = b'{"type":"message_start","message":{"usage":{"input_tokens":13,"output_tokens":1}}}'
    assert merged(Api.MESSAGES, start) == Usage(13, None)


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_responses_events_that_end_a_stream(kind):
    event = {
        "type": f"response.{kind}",
        "response": {
            "usage": {"input_tokens": 13, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2},
        },
    }
    assert merged(
        Api.RESPONSES,
        b'{"type":"response.created","response":{"usage":null}}',
        json.dumps(event).encode(),
    ) == Usage(13, 2, 0)


def test_sglang_stream_counts_with_its_last_event():
    event = '{"text":"hi","meta_info":{"prompt_tokens":5,"completion_tokens":%d,"cached_tokens":4,"finish_reason": %s}}'
    running, done = (event % (1, "null")).encode(), (event % (2, '{"type":"stop"}')).encode()
    assert merged(Api.SGLANG_GENERATE, running) == Usage()
    assert merged(Api.SGLANG_GENERATE, running, done, b"[DONE]") == Usage(5, 2, 4)


def test_sglang_json_answers_of_a_batch_add_up():
    answer = {"text": "x", "meta_info": {"prompt_tokens": 5, "completion_tokens": 2}}
    assert usage_from_json(Api.SGLANG_GENERATE, json.dumps(answer).encode()) == Usage(5, 2)
    assert usage_from_json(Api.SGLANG_GENERATE, json.dumps([answer, answer]).encode()) == Usage(10, 4)


@pytest.mark.parametrize("spaces", [None, 1])
def test_usage_of_a_body_that_was_too_long_to_keep_is_read_at_its_ends(spaces):
    usage = {"prompt_tokens": 13, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    text = 'größe, and she said "usage":{"prompt_tokens": 99}'
    body = {"id": "x", "usage": usage, "choices": [{"text": text}], "tools": [{"usage": {"type": "object"}}]}
    first = json.dumps(body, indent=spaces, ensure_ascii=False).encode()
    last = json.dumps({"choices": body["choices"], "usage": usage, "x": None}, indent=spaces).encode()
    assert usage_from_ends(Api.CHAT, first, b"\xb6\xc3, cut") == Usage(13, 3, 8)
    assert usage_from_ends(Api.CHAT, b'{"usage": {"prompt_tok', last[5:]) == Usage(13, 3, 8)
    assert usage_from_ends(Api.CHAT, b'{"id"', b'"usage": {"a": ' + b"[" * 3000 + b', "usage": {"prompt_') == Usage()
    assert usage_from_ends(Api.OPAQUE, first, last) == Usage()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["usage", "response", "message", "meta_info", "prompt_tokens", "output_tokens", "prompt_tokens_details"]
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.dictionaries(names, st.dictionaries(names, anything) | anything) | anything))
def test_usage_never_raises(value):
    payload = json.dumps(value).encode()
    for api in Api:
        for usage in (usage_from_json(api, payload), merge_sse_usage(api, payload, Usage())):
            for count in (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens):
                assert count is None or count >= 0
