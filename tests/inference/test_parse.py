"""What is read of a request, whatever its bytes."""

import gzip
import json
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.inference import content_encoding
from epp.inference.parse import BadRequest, parse_request
from epp.inference.request import Api, ErrorStyle, Media, Request

INFERENCE_APIS = [api for api in Api if api is not Api.OPAQUE]


def parse(api, body, headers=None, **options):
    if not isinstance(body, bytes | None):
        body = json.dumps(body).encode()
    return parse_request(api, body, headers or {}, id="stream-1", path=options.pop("path", "/v1/x"), **options)


def parts(api, body):
    request = parse(api, body)
    assert isinstance(request, Request)
    return [prompt.parts for prompt in request.prompts]


def text(api, body):
    """The only prompt, which must be nothing but text."""
    [[only]] = parts(api, body)
    return only.decode()


# --- fields ---------------------------------------------------------------------------------------------------------


def test_fields_that_plugins_see():
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":7,"cache_salt":"s"}'
    request = parse_request(
        Api.CHAT, body, {":method": "POST", "x": "y"}, id="stream-9", path="/v1/chat/completions?q=1"
    )
    assert isinstance(request, Request)
    assert request.id == "stream-9"
    assert request.api is Api.CHAT
    assert request.path == "/v1/chat/completions?q=1"
    assert request.headers["x"] == "y"
    assert (request.model, request.target_model) == ("m", "m")
    assert request.streaming
    assert request.max_output_tokens == 7
    assert request.cache_salt == "s"
    assert request.body_bytes == len(body)
    assert request.generates
    assert request.error_style is ErrorStyle.OPENAI
    assert parse(Api.MESSAGES, {}).error_style is ErrorStyle.ANTHROPIC


@pytest.mark.parametrize("model", [None, 3, ["m"], {"a": 1}, True, ""])
def test_a_model_that_is_no_string_is_no_model(model):
    request = parse(Api.CHAT, {"model": model, "messages": []})
    assert (request.model, request.target_model) == (None, None)


@pytest.mark.parametrize("stream", ["true", 1, None, [], "yes"])
def test_only_a_true_boolean_asks_for_a_stream(stream):
    assert not parse(Api.CHAT, {"stream": stream}).streaming


@pytest.mark.parametrize(
    ("api", "body", "cap"),
    [
        (Api.COMPLETIONS, {"max_tokens": 5}, 5),
        (Api.CHAT, {"max_tokens": 5}, 5),
        (Api.CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, 6),
        (Api.CHAT, {"max_tokens": 5, "max_completion_tokens": -6}, 5),
        (Api.CHAT, {"max_tokens": 0}, 0),
        (Api.CHAT, {"max_tokens": 5.0}, 5),
        (Api.CHAT, {"max_tokens": "5"}, 5),
        (Api.CHAT, {"max_tokens": 5.5}, None),
        (Api.CHAT, {"max_tokens": True}, None),
        (Api.CHAT, {"max_tokens": 10**400}, None),
        (Api.CHAT, {"max_tokens": 2**63 - 1}, None),
        (Api.CHAT, {"max_tokens": float("inf")}, None),
        (Api.CHAT, {"max_tokens": float("nan")}, None),
        (Api.CHAT, {"max_tokens": [5]}, None),
        (Api.RESPONSES, {"max_output_tokens": 8, "max_tokens": 1}, 8),
        (Api.MESSAGES, {"max_tokens": 9}, 9),
        (Api.EMBEDDINGS, {"max_tokens": 9}, None),
        (Api.VLLM_GENERATE, {"sampling_params": {"max_tokens": 4}, "max_tokens": 1}, 4),
        (Api.SGLANG_GENERATE, {"sampling_params": {"max_new_tokens": 3}}, 3),
        (Api.SGLANG_GENERATE, {"sampling_params": [{"max_new_tokens": 3}]}, None),
    ],
)
def test_the_cap_of_output_tokens(api, body, cap):
    assert parse(api, body).max_output_tokens == cap


def test_sglang_separates_caches_by_extra_key_and_adapter():
    salts = {
        parse(Api.SGLANG_GENERATE, {"text": "x", **extra}).cache_salt
        for extra in ({}, {"extra_key": "a"}, {"lora_path": "l"}, {"extra_key": "a", "lora_path": "l"})
    }
    assert salts == {None, "a", "l", "al"}


# --- refusals and what is not refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b'{"a":}', b"x", b"[1,", b'{"a":1} x', b'"\xff"', b"\xff\xfe"])
@pytest.mark.parametrize("api", INFERENCE_APIS)
def test_malformed_json_is_a_bad_request(api, body):
    assert isinstance(parse(api, body), BadRequest)


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"null", b"3", b"true"])
@pytest.mark.parametrize("api", INFERENCE_APIS)
def test_json_that_is_no_object_is_a_bad_request(api, body):
    assert isinstance(parse(api, body), BadRequest)


@pytest.mark.parametrize("api", [api for api in INFERENCE_APIS if api is not Api.CONVERSATIONS])
def test_a_post_with_an_empty_body_is_a_bad_request(api):
    assert isinstance(parse(api, b"", {":method": "POST"}), BadRequest)
    assert isinstance(parse(api, None, {":method": "POST"}, has_body=False), BadRequest)


def test_a_get_without_body_is_routed_and_does_no_inference_work():
    request = parse(Api.RESPONSES, None, {":method": "GET"}, has_body=False)
    assert isinstance(request, Request)
    assert not request.generates


def test_a_body_that_is_not_shown_is_routed_unread():
    request = parse(Api.CHAT, None, {":method": "POST"})
    assert isinstance(request, Request)
    assert request.generates
    assert request.prompts == ()


def test_a_refusal_says_nothing_of_the_body():
    refusal = parse(Api.CHAT, b'{"messages":[{"content":"SECRET"}')
    assert isinstance(refusal, BadRequest)
    assert "SECRET" not in refusal.message


def test_an_opaque_body_is_never_read():
    for body in (b"\x00\xff", b"{", b"", b'{"model":"m","prompt":"x"}'):
        request = parse(Api.OPAQUE, body, {":method": "POST"})
        assert isinstance(request, Request)
        assert (request.model, request.prompts) == (None, ())


def test_a_body_cut_short_is_opaque():
    request = parse(Api.CHAT, b'{"model":"m","messages":[{"role":"us', body_complete=False)
    assert isinstance(request, Request)
    assert (request.model, request.prompts, request.generates) == (None, (), True)


def test_count_tokens_has_a_model_to_rewrite_but_no_prompt_and_no_inference_work():
    request = parse(Api.COUNT_TOKENS, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert (request.model, request.prompts, request.generates) == ("m", (), False)


def test_render_does_no_inference_work():
    request = parse(Api.CHAT, {"messages": []}, path="/v1/chat/completions/render")
    assert not request.generates


@pytest.mark.parametrize("depth", [300, 1000, 1100, 10_000, 200_000])
@pytest.mark.parametrize("where", ["messages", "tools", "input", "prompt", "content"])
def test_deep_nesting_is_routed(depth, where):
    nest = b"[" * depth + b"]" * depth
    if where == "content":
        body = b'{"messages":[{"role":"user","content":' + nest + b"}]}"
    else:
        body = b'{"' + where.encode() + b'":' + nest + b"}"
    for api in INFERENCE_APIS:
        assert isinstance(parse(api, body), Request)


def test_deeply_nested_content_blocks_are_routed():
    body = b'{"messages":[{"content":' + b'[{"type":"tool_result","content":' * 400 + b'"x"' + b"}]" * 400 + b"}]}"
    assert isinstance(parse(Api.MESSAGES, body), Request)


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"model":"m","prompt":"x"}',
        b'{"model":"m","prompt":"x","temperature":NaN}',
        b'{"model":"m","prompt":"x","temperature":1e999}',
        b'{"model":"m","prompt":"x","seed":' + b"9" * 400 + b"}",
        b'{"model":"m","prompt":"x","user":"\\ud800"}',
    ],
)
def test_what_a_lenient_server_reads_is_read(body):
    request = parse(Api.COMPLETIONS, body)
    assert request.model == "m"
    assert request.prompts[0].parts == (b"x",)


def test_a_number_too_long_to_read_is_routed():
    assert isinstance(parse(Api.COMPLETIONS, b'{"a":-' + b"9" * 10_000 + b"}"), Request)


def test_lone_surrogates_are_kept_apart_and_encodable():
    one, other = (
        parse(Api.COMPLETIONS, b'{"prompt":"' + s + b'","model":"' + s + b'"}') for s in (b"\\ud800", b"\\udfff")
    )
    assert one.model.encode() != other.model.encode()
    assert one.prompts != other.prompts


def test_tools_that_cannot_be_written_back_cost_the_prompt_not_the_model():
    body = b'{"model":"m","messages":[{"content":"hi"}],"tools":[' + b"[" * 400 + b"]" * 400 + b"]}"
    request = parse(Api.CHAT, body)
    assert (request.model, request.prompts) == ("m", ())


KEYS = [
    "model",
    "prompt",
    "messages",
    "input",
    "items",
    "tools",
    "system",
    "instructions",
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "data",
    "source",
    "tool_calls",
    "token_ids",
    "input_ids",
    "features",
    "mm_hashes",
    "mm_placeholders",
    "sampling_params",
    "max_tokens",
    "image_data",
    "summary",
    "output",
    "arguments",
    "uuid",
    "conversation",
    "offset",
    "length",
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["text", "image_url", "input_audio", "tool_use", "tool_result", "data:image/png;base64,iVBORw0K"]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["prompt", "messages", "input", "items", "system", "tools", "features"]), json_values
    )
)
def test_no_object_is_ever_refused(value):
    body = json.dumps(value).encode()
    for api in INFERENCE_APIS:
        assert isinstance(parse(api, body), Request)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=64) | json_values.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_no_bytes_ever_raise(body, complete):
    for api in Api:
        for encoding in ("identity", "gzip", "deflate", "br"):
            answer = parse(api, body, {"content-encoding": encoding}, body_complete=complete)
            assert isinstance(answer, Request | BadRequest)


# --- compressed bodies ----------------------------------------------------------------------------------------------

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(CHAT)),
        ("GZIP ", gzip.compress(CHAT)),
        ("x-gzip", gzip.compress(CHAT[:20]) + gzip.compress(CHAT[20:])),
        ("deflate", zlib.compress(CHAT)),
        ("deflate", zlib.compress(CHAT)[2:-4]),
        ("identity", CHAT),
    ],
)
def test_compressed_bodies_are_looked_into(encoding, body):
    request = parse(Api.CHAT, body, {"content-encoding": encoding})
    assert request.model == "m"
    assert request.prompts[0].parts == (b"userhi",)
    assert request.body_bytes == len(body)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", CHAT),
        ("gzip", gzip.compress(CHAT)[:-3]),
        ("gzip", gzip.compress(CHAT) + b"junk"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("br", b"\x0b"),
        ("gzip, gzip", gzip.compress(gzip.compress(CHAT))),
    ],
)
def test_what_cannot_be_decoded_is_opaque(encoding, body):
    request = parse(Api.CHAT, body, {"content-encoding": encoding})
    assert isinstance(request, Request)
    assert (request.model, request.prompts) == (None, ())


def test_a_decompression_bomb_stops_at_the_cap(monkeypatch):
    monkeypatch.setattr(content_encoding, "MAX_DECODED_BYTES", 1000)
    within = b'{"model":"m","user":"' + b"x" * 900 + b'"}'
    beyond = b'{"model":"m","user":"' + b"x" * 1000 + b'"}'
    assert parse(Api.CHAT, gzip.compress(within), {"content-encoding": "gzip"}).model == "m"
    assert parse(Api.CHAT, gzip.compress(beyond), {"content-encoding": "gzip"}).model is None
    members = gzip.compress(b" " * 600) * 2
    assert parse(Api.CHAT, members, {"content-encoding": "gzip"}).model is None


# --- completions, embeddings, images --------------------------------------------------------------------------------


def ids(*tokens):
    return struct.pack(f"<{len(tokens)}I", *tokens)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", [(b"abc",)]),
        ("é", [("é".encode(),)]),
        (["abc"], [(b"abc",)]),
        (["a", "b"], [(b"a",), (b"b",)]),
        ([1, 2, 2**32 - 1], [(ids(1, 2, 2**32 - 1),)]),
        ([[1], [2, 3]], [(ids(1),), (ids(2, 3),)]),
        (["a", [1, 2]], [(b"a",), (ids(1, 2),)]),
        ("", []),
        ([], []),
        ([[]], []),
        (None, []),
        (5, []),
        ([1, -1], []),
        ([1, 2**32], []),
        ([1, 10**30], []),
        ([1, 1.5], []),
        ([1, "a"], []),
        ({"prompt_string": "x"}, []),
    ],
)
@pytest.mark.parametrize(("api", "key"), [(Api.COMPLETIONS, "prompt"), (Api.EMBEDDINGS, "input")])
def test_text_and_token_prompts(api, key, prompt, expected):
    assert parts(api, {key: prompt}) == expected


def test_embeddings_of_chat_messages():
    assert text(Api.EMBEDDINGS, {"messages": [{"role": "user", "content": "hi"}]}) == "userhi"


def test_image_generation():
    assert text(Api.IMAGES, {"prompt": "a cat", "n": 2, "size": "64x64"}) == "a cat"


# --- chat -----------------------------------------------------------------------------------------------------------


def test_chat_is_role_and_text_without_separators():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
    ]
    assert text(Api.CHAT, {"messages": messages}) == "systembe briefuserhello"


def test_tools_and_documents_come_first_in_the_order_of_the_client():
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"z": 1, "a": "<é>"}], "documents": ["d"]}
    assert text(Api.CHAT, body) == '[{"z":1,"a":"<é>"}]["d"]userhi'


def test_tool_calls_and_results_count():
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    assert text(Api.CHAT, {"messages": messages}) == 'assistant[{"id":"1","function":{"name":"f"}}]tool42'


@pytest.mark.parametrize("content", [None, [], "", [None], [{"type": "text", "text": None}], [{"type": "text"}]])
def test_empty_content_is_nothing(content):
    assert text(Api.CHAT, {"messages": [{"role": "user", "content": content}]}) == "user"


@pytest.mark.parametrize("messages", [None, {}, "x", 5, []])
def test_messages_of_an_unknown_shape_are_routed(messages):
    assert parts(Api.CHAT, {"messages": messages}) == []


@pytest.mark.parametrize("field", ["user", "seed", "temperature", "metadata", "top_p", "stream", "model", "max_tokens"])
def test_fields_that_no_template_sees_do_not_change_the_prompt(field):
    messages = [{"role": "user", "content": "hi"}]
    plain = parts(Api.CHAT, {"messages": messages})
    for value in (1, "a", {"t": 3}):
        assert parts(Api.CHAT, {field: value, "messages": messages}) == plain


def test_different_tools_differ_from_the_first_byte():
    one, other = (
        text(Api.CHAT, {"tools": [{"name": name}], "messages": [{"role": "user", "content": "hi"}]}) for name in "ab"
    )
    assert one[:12] != other[:12]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "http://h/X"}}, "image"),
        ({"type": "image_url", "image_url": "http://h/X"}, "image"),
        ({"image_url": {"url": "http://h/X"}}, "image"),
        ({"type": "image_url", "text": None, "image_url": {"url": "X"}}, "image"),
        ({"type": "image_url", "image_url": None, "uuid": "X"}, "image"),
        ({"type": "input_image", "image_url": "data:image/png;base64,X"}, "image"),
        ({"type": "input_image", "file_id": "file-X"}, "image"),
        ({"type": "image", "source": {"type": "base64", "data": "X"}}, "image"),
        ({"type": "video_url", "video_url": {"url": "http://h/X"}}, "video"),
        ({"type": "audio_url", "audio_url": "http://h/X"}, "audio"),
        ({"type": "input_audio", "input_audio": {"data": "X", "format": "wav"}}, "audio"),
    ],
)
def test_media_are_known_by_their_content(part, kind):
    def prompt(name):
        content = [{"type": "text", "text": "see "}, json.loads(json.dumps(part).replace("X", name)), "after"]
        [found] = parts(Api.CHAT, {"messages": [{"role": "user", "content": content}]})
        return found

    before, medium, after = prompt("one")
    assert (before, after) == (b"usersee ", b"after")
    assert isinstance(medium, Media)
    assert medium.kind.value == kind
    assert prompt("one") == (before, medium, after)
    assert prompt("two")[1].content_hash != medium.content_hash


def test_the_same_picture_sent_by_uuid_alone_is_the_same():
    def hash_of(part):
        [[_, medium]] = parts(Api.CHAT, {"messages": [{"role": "user", "content": [part]}]})
        return medium.content_hash

    first = hash_of({"type": "image_url", "image_url": {"url": "http://h/a"}, "uuid": "u"})
    assert hash_of({"type": "image_url", "image_url": None, "uuid": "u"}) == first


@pytest.mark.parametrize(
    "part",
    [
        {"type": "hologram", "hologram": "X"},
        {"type": ["odd"], "x": "X"},
        {"type": "file", "file": {"file_data": "X" * 10_000}},
        {"type": "image_url", "image_url": {"detail": "X"}},
        {"type": "image_url", "image_url": 5, "x": "X"},
        ["X"],
        5,
    ],
)
def test_unknown_parts_are_told_apart_but_hardly_counted(part):
    known = text(Api.CHAT, {"messages": [{"role": "user", "content": ["a", part, "b"]}]})
    assert known.startswith("usera")
    assert len(known) == len("usera") + 16 + len("b")
    other = json.loads(json.dumps(part).replace("X", "Y").replace("5", "6"))
    assert text(Api.CHAT, {"messages": [{"role": "user", "content": ["a", other, "b"]}]}) != known


# --- responses, conversations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "x"}, "x"),
        ({"input": [{"role": "user", "content": "x"}]}, "userx"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}, "userx"),
        ({"input": [{"type": "input_text", "text": "x"}]}, "x"),
        ({"instructions": "be brief", "tools": [{"a": 1}], "input": "x"}, '[{"a":1}]be briefx'),
        ({"previous_response_id": "resp_1"}, "resp_1"),
        ({"previous_response_id": "resp_1", "input": "x"}, "resp_1x"),
        ({"conversation": {"id": "c"}, "input": "x"}, '{"id":"c"}x'),
        ({"conversation": "conv_1", "input": "x"}, "conv_1x"),
        (
            {
                "input": [
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a":1}'},
                    {"type": "function_call_output", "call_id": "1", "output": "42"},
                ]
            },
            'hmf{"a":1}42',
        ),
    ],
)
def test_responses(body, expected):
    assert text(Api.RESPONSES, body) == expected


def test_conversation_items():
    assert text(Api.CONVERSATIONS, {"items": [{"type": "message", "role": "user", "content": "x"}]}) == "userx"
    assert parts(Api.CONVERSATIONS, {}) == []


# --- anthropic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "userhi"),
        ({"system": "be brief", "messages": [{"role": "user", "content": "hi"}]}, "be briefuserhi"),
        (
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=0f3"},
                    {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
                ],
                "messages": [],
            },
            "be brief",
        ),
        ({"tools": [{"name": "f"}], "system": "s", "messages": []}, '[{"name":"f"}]s'),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "z"},
                            {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}},
                        ],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]},
                ]
            },
            'assistanthmt1f{"b":1,"a":2}user42',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"text": "4"}, "2"]}]}]},
            "user42",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "document", "source": {"type": "text", "data": "the text"}}],
                    }
                ]
            },
            "userthe text",
        ),
    ],
)
def test_anthropic_messages(body, expected):
    assert text(Api.MESSAGES, body) == expected


def test_a_billing_line_that_changes_does_not_change_the_prompt():
    def prompt(line):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: {line}"}, {"type": "text", "text": "s"}]
        return parts(Api.MESSAGES, {"system": system, "messages": [{"role": "user", "content": "hi"}]})

    assert prompt("1") == prompt("2")


def test_pictures_in_tool_results_are_media():
    block = {
        "type": "tool_result",
        "content": [
            {"type": "image", "source": {"type": "url", "url": "http://h/a.png"}},
            {"type": "text", "text": "t"},
        ],
    }
    [[before, medium, after]] = parts(Api.MESSAGES, {"messages": [{"role": "user", "content": [block]}]})
    assert (before, after) == (b"user", b"t")
    assert isinstance(medium, Media)


def test_an_image_with_neither_url_nor_data_is_routed():
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]}
    assert text(Api.MESSAGES, body).startswith("user")


# --- engines' own APIs ----------------------------------------------------------------------------------------------


def test_vllm_generate():
    body = {"model": "m", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}, "cache_salt": "s"}
    request = parse(Api.VLLM_GENERATE, body)
    [prompt] = request.prompts
    assert prompt.parts == (ids(1, 2, 3),)
    assert (request.model, request.cache_salt) == ("m", "s")


def test_vllm_placeholders_say_which_picture_they_stand_for():
    def tokens(name, length=2):
        features = {
            "mm_hashes": {"image": [name]},
            "mm_placeholders": {"image": [{"offset": 1, "length": length}]},
        }
        [[packed]] = parts(Api.VLLM_GENERATE, {"token_ids": [7, 9, 9, 8], "features": features})
        return struct.unpack("<4I", packed)

    first, picture, again, last = tokens("a")
    assert (first, last) == (7, 8)
    assert picture == again != 9
    assert tokens("b")[1] != picture
    assert tokens("a", length=10**9)[1:] == (picture,) * 3


@pytest.mark.parametrize("token_ids", [None, [], "x", [1, -1], [1, None], [2**32]])
def test_vllm_token_ids_of_an_unknown_shape_are_routed(token_ids):
    assert parts(Api.VLLM_GENERATE, {"token_ids": token_ids}) == []


def test_sglang_generate():
    assert parts(Api.SGLANG_GENERATE, {"text": "hi"}) == [(b"hi",)]
    assert parts(Api.SGLANG_GENERATE, {"text": ["a", "b"]}) == [(b"a",), (b"b",)]
    assert parts(Api.SGLANG_GENERATE, {"input_ids": [1, 2]}) == [(ids(1, 2),)]
    assert parts(Api.SGLANG_GENERATE, {"input_ids": [[1], [2]]}) == [(ids(1),), (ids(2),)]


def test_sglang_pictures_tell_prompts_apart():
    def prompt(picture):
        return parts(Api.SGLANG_GENERATE, {"text": "<image> what?", "image_data": picture})

    assert prompt("http://h/a") == prompt(["http://h/a"]) != prompt("http://h/b")
