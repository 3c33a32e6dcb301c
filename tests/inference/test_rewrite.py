"""A model's name changed in place, every other byte as it was."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.inference import rewrite
from epp.inference.rewrite import ResponseModelRewriter, insert_model, splice_model


def splice(body, model="new"):
    parts = splice_model(body, model)
    return None if parts is None else b"".join(parts)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b'{"model":""}', b'{"model":"new"}'),
        (b' \r\n{ "x" : 1 ,\t"model" : "a" , "y":[ ] } ', b' \r\n{ "x" : 1 ,\t"model" : "new" , "y":[ ] } '),
        (b'\xef\xbb\xbf{"model":"a"}', b'\xef\xbb\xbf{"model":"new"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"a\\"}{\\\\"}', b'{"model":"new"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (b'{"model":"a","model":null}', b'{"model":"new","model":null}'),
        (
            b'{"m":{"model":"a"},"l":[{"model":"b"}],"t":"\\"model\\":\\"c\\"","model":"d"}',
            b'{"m":{"model":"a"},"l":[{"model":"b"}],"t":"\\"model\\":\\"c\\"","model":"new"}',
        ),
        (
            b'{"seed":9007199254740993,"a":1e2,"b":-0,"c":"\\u00e9<>&","model":"a","d":true}',
            b'{"seed":9007199254740993,"a":1e2,"b":-0,"c":"\\u00e9<>&","model":"new","d":true}',
        ),
    ],
)
def test_only_the_top_level_name_changes(body, expected):
    assert splice(body) == expected


def test_the_new_name_is_escaped():
    assert splice(b'{"model":"a"}', 'n"\\é') == '{"model":"n\\"\\\\é"}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'"model"',
        b'{"model":null}',
        b'{"model":3}',
        b'{"model":{"model":"a"}}',
        b'{"prompt":"\\"model\\":\\"a\\""}',
        b'{"a":1',
        b'{"model":"a"',
        b'{"model":"a",',
        b'{"model":"a',
        b'{"model" "a"}',
        b'{"x":[1,2,"model":"a"}',
        b"\x1f\x8b\x08\x00",
        b'{"\\ud83":1,"model":"a"}',
    ],
)
def test_without_a_name_there_is_nothing_to_replace(body):
    assert splice(body) is None


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 10, 40, 1000])
def test_names_beside_deep_values_are_found(depth):
    deep = b'[{"a":"]}"},' * depth + b'"model"' + b"]" * depth
    assert splice(b'{"x":' + deep + b',"model":"a","y":' + deep + b"}") == (
        b'{"x":' + deep + b',"model":"new","y":' + deep + b"}"
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":' + b"[" * 500_000,
        b'{"x":[' + (b"[" * 500 + b"]" * 500 + b",") * 500 + b'1],"model":"a"}',
        b"{" + b'"x":1,' * 50_000 + b'"model":"a"}',
    ],
)
def test_bodies_made_to_waste_time_are_given_up_on(body):
    assert splice(body) is None


texts = st.text(max_size=8) | st.sampled_from(["model", '"model":"x"', "\\", '"', "}", "]", "{[", "é"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def spaced(text, spaces):
    """JSON with whitespace put around its punctuation, outside of strings."""
    out, inside, escaped, turn = [], False, False, 0
    for char in text:
        if inside:
            inside, escaped = escaped or char != '"', char == "\\" and not escaped
        elif char in '{}[],:"':
            out.append(spaces[turn % len(spaces)])
            turn += 1
            inside = char == '"'
        out.append(char)
    return "".join(out)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(texts, values, max_size=5).map(lambda d: {k: v for k, v in d.items() if k != "model"}),
    texts,
    texts,
    st.integers(0, 5),
    st.lists(st.text(" \t\r\n", max_size=2), min_size=1, max_size=7),
    st.booleans(),
)
def test_splicing_equals_setting_the_key_and_touches_nothing_else(fields, old, new, at, spaces, ascii_only):
    items = list(fields.items())
    items.insert(at, ("model", old))
    body = spaced(json.dumps(dict(items), ensure_ascii=ascii_only), spaces).encode()
    parts = splice_model(body, new)
    assert parts is not None
    before, value, after = parts
    assert json.loads(value) == new
    assert body.startswith(before)
    assert body.endswith(after)
    assert json.loads(body[len(before) : len(body) - len(after)]) == old
    assert json.loads(b"".join(parts)) == {**dict(items), "model": new}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"model":"new"}'),
        (b' \n{ "prompt" : "x" } ', b' \n{"model":"new", "prompt" : "x" } '),
        (b'\xef\xbb\xbf{"a":{"model":"b"}}', b'\xef\xbb\xbf{"model":"new","a":{"model":"b"}}'),
    ],
)
def test_a_body_without_a_model_can_be_given_one(body, expected):
    assert b"".join(insert_model(body, "new")) == expected
    assert json.loads(expected.decode("utf-8-sig"))["model"] == "new"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model":null}', b'{"a":1'])
def test_what_names_a_model_of_whatever_type_is_given_none(body):
    assert insert_model(body, "new") is None


# --- responses ------------------------------------------------------------------------------------------------------

STREAM = (
    b'data: {"id":"c1","model":"llama-v2","choices":[{"delta":{"text":"Am \\"model\\":\\"llama-v2\\" llama-v2"}}]}\n\n'
    b": keep-alive llama-v2\n\n"
    b'event: message_start\r\ndata: {"type":"message_start","message":{"model":"llama-v2","usage":{}}}\r\n\r\n'
    b'data:{"type":"response.created","response":{"id":"r", "model" : "llama-v2" ,"output":[{"model":"llama-v2"}]}}\n\n'
    + 'data: {"model":"another","choices":[{"delta":{"content":"é"}}]}\n\n'.encode()
    + b'data: {"model":"llama\\u002dv2"}\r\rdata: {"model":"llama-v2"\n\ndata: [DONE]\n\n'
    b'data: {"model":"llama-v2"}'
)
RESTORED = (
    b'data: {"id":"c1","model":"chat","choices":[{"delta":{"text":"Am \\"model\\":\\"llama-v2\\" llama-v2"}}]}\n\n'
    b": keep-alive llama-v2\n\n"
    b'event: message_start\r\ndata: {"type":"message_start","message":{"model":"chat","usage":{}}}\r\n\r\n'
    b'data:{"type":"response.created","response":{"id":"r", "model" : "chat" ,"output":[{"model":"llama-v2"}]}}\n\n'
    + 'data: {"model":"another","choices":[{"delta":{"content":"é"}}]}\n\n'.encode()
    + b'data: {"model":"chat"}\r\rdata: {"model":"llama-v2"\n\ndata: [DONE]\n\n'
    b'data: {"model":"chat"}'
)


def restored(pieces, *, event_stream):
    rewriter = ResponseModelRewriter("llama-v2", "chat", event_stream=event_stream)
    return b"".join(rewriter.feed(piece, number == len(pieces) - 1) for number, piece in enumerate(pieces))


def cut(data, places):
    bounds = [0, *sorted(place for place in places if place <= len(data)), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


def test_every_event_gets_the_clients_name_and_text_is_let_alone():
    assert restored([STREAM], event_stream=True) == RESTORED


def test_a_stream_cut_at_any_byte_is_restored_alike():
    for place in range(len(STREAM) + 1):
        assert restored(cut(STREAM, [place]), event_stream=True) == RESTORED
    assert restored([STREAM[at : at + 1] for at in range(len(STREAM))], event_stream=True) == RESTORED


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.integers(20, 160))
def test_any_fragmentation_gives_the_same_bytes_also_with_events_beyond_the_bound(places, bound):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "MAX_EVENT_BYTES", bound)
        whole = restored([STREAM], event_stream=True)
        assert restored(cut(STREAM, places), event_stream=True) == whole
        assert len(whole) <= len(STREAM)


def test_events_are_not_held_longer_than_their_line():
    rewriter = ResponseModelRewriter("llama-v2", "chat", event_stream=True)
    assert rewriter.feed(b'data: {"model":"llama-v2"}\n', False) == b'data: {"model":"chat"}\n'
    assert rewriter.feed(b"\ndata: {", False) == b"\n"
    assert rewriter.feed(b'"model":"llama-v2"}', False) == b""
    assert rewriter.feed(b"", True) == b'data: {"model":"chat"}'


def test_an_event_beyond_the_bound_passes_untouched_and_is_not_held(monkeypatch):
    monkeypatch.setattr(rewrite, "MAX_EVENT_BYTES", 50)
    rewriter = ResponseModelRewriter("llama-v2", "chat", event_stream=True)
    endless = b'data: {"model":"llama-v2","x":"' + b"y" * 60
    assert rewriter.feed(endless, False) == endless
    assert rewriter.feed(b"more", False) == b"more"
    assert rewriter.feed(b'"}\ndata: {"model":"llama-v2"}\n', True) == b'"}\ndata: {"model":"chat"}\n'


BODY = b'{"id":"c1", "model" : "llama-v2","choices":[{"message":{"content":"llama-v2"},"model":"llama-v2"}]}\n'


def test_a_json_body_is_restored_in_any_fragmentation():
    expected = BODY.replace(b'"model" : "llama-v2"', b'"model" : "chat"')
    for place in range(len(BODY) + 1):
        assert restored(cut(BODY, [place]), event_stream=False) == expected
    assert restored([BODY, b""], event_stream=False) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"error":"x"}',
        BODY[:-20],
        b'[{"model":"llama-v2"}]',
        b'{"model":"other"}',
        b'{"response":{"message":{"model":"llama-v2"}}}',
        b"\xff\0",
    ],
)
def test_other_bodies_pass_untouched(body):
    assert restored([body], event_stream=False) == body
    assert restored([body], event_stream=True) == body


def test_a_json_body_beyond_the_bound_passes_untouched(monkeypatch):
    monkeypatch.setattr(rewrite, "MAX_JSON_BYTES", 40)
    for pieces in ([BODY], cut(BODY, [10, 30, 50])):
        assert restored(pieces, event_stream=False) == BODY
