"""Bodies that clients make to waste time or memory."""

import gzip
import io
import tracemalloc
import zlib

import orjson
import pytest
from picker_in_memory import ADDRESSES, World
from work import assert_work_is_in_proportion

from epp.inference import content_encoding
from epp.inference.parse import BadRequest, parse_request
from epp.inference.prompt import MAX_ENTRIES
from epp.inference.request import Api
from epp.wire.codec import ProtocolError
from epp.wire.sse import SseReader

WORLD = World()


def parse(api: Api, body: bytes, **headers: str):
    return parse_request(api, body, headers, id="1", path="/v1/x")


def packed_by_members(count: int, plain: bytes = b"") -> bytes:
    return gzip.compress(plain, mtime=0) * count


def test_a_body_packed_in_a_few_members_is_read_whole():
    body = b'{"model":"m","prompt":"' + b"a" * 200_000 + b'"}'
    packed = b"".join(gzip.compress(body[at : at + 65_536], mtime=0) for at in range(0, len(body), 65_536))
    assert content_encoding.decode(packed, "gzip") == body
    assert content_encoding.decode(zlib.compress(body), "deflate") == body


def test_members_without_end_are_given_up_on():
    assert_work_is_in_proportion(lambda n: content_encoding.decode(packed_by_members(n), "gzip"), 20_000)
    assert_work_is_in_proportion(lambda n: content_encoding.decode(b"\x03\x00" * n, "deflate"), 100_000)
    assert content_encoding.decode(packed_by_members(5_000), "gzip") is None


@pytest.mark.parametrize("wrap", [lambda data: data, gzip.compress])
def test_a_bomb_is_routed_unread_and_never_unpacked(wrap):
    plain = io.BytesIO()
    with gzip.GzipFile(fileobj=plain, mode="wb") as bomb:
        for _ in range(48):
            bomb.write(bytes(1 << 20))
    body = wrap(plain.getvalue())
    tracemalloc.start()
    talk = WORLD.post(body, headers={"content-encoding": "gzip"})
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert talk.replies[0].HasField("request_headers") or talk.replies[0].immediate_response.status.code == 400
    assert peak_bytes < 4 * content_encoding.MAX_DECODED_BYTES
    talk.close()
    WORLD.assert_nothing_is_left()


LISTS = {
    "prompts": (Api.COMPLETIONS, b'{"prompt":[', b'"a"'),
    "token prompts": (Api.COMPLETIONS, b'{"prompt":[', b"[1]"),
    "inputs": (Api.EMBEDDINGS, b'{"input":[', b'"a"'),
    "messages": (Api.CHAT, b'{"messages":[', b'{"content":1}'),
    "blocks": (Api.CHAT, b'{"messages":[{"content":[', b"{}"),
    "pictures": (Api.CHAT, b'{"messages":[{"content":[', b'{"image":"a"}'),
    "items": (Api.RESPONSES, b'{"input":[', b'{"content":[1,1]}'),
    "system blocks": (Api.MESSAGES, b'{"system":[', b"1"),
    "batches": (Api.SGLANG_GENERATE, b'{"text":[', b'"a"'),
    "sglang pictures": (Api.SGLANG_GENERATE, b'{"text":"a","image_data":[', b'"a"'),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_millions_is_read_no_further_than_its_beginning(name):
    api, head, entry = LISTS[name]
    closing = {b"[": b"]", b"{": b"}"}
    tail = b"".join(closing[bytes([c])] for c in reversed(head) if c in b"[{")
    parsed = parse(api, head + b",".join([entry] * (4 * MAX_ENTRIES)) + tail)
    assert not isinstance(parsed, BadRequest)
    assert len(parsed.prompts) <= MAX_ENTRIES
    assert sum(len(prompt.parts) for prompt in parsed.prompts) <= MAX_ENTRIES + 1
    assert all(prompt.parts for prompt in parsed.prompts)


def test_blocks_of_all_messages_count_together():
    message = b'{"content":[' + b",".join([b'{"text":"ab"}'] * 1000) + b"]}"
    parsed = parse(Api.CHAT, b'{"messages":[' + b",".join([message] * 50) + b"]}")
    assert parsed.prompts[0].parts == (b"ab" * MAX_ENTRIES,)


def test_conversations_that_share_a_beginning_still_share_it_beyond_the_bound():
    def text(n: int) -> bytes:
        body = {"messages": [{"role": "user", "content": str(i)} for i in range(n)]}
        return parse(Api.CHAT, orjson.dumps(body)).prompts[0].parts[0]

    assert text(MAX_ENTRIES + 5_000) == text(MAX_ENTRIES)
    assert text(MAX_ENTRIES).startswith(text(100))


def test_spans_that_all_claim_the_whole_prompt_cost_no_square():
    def run(n: int):
        span, name = b'{"offset":0,"length":1000000000}', b'"h"'
        features = b'{"mm_hashes":{"image":[%s]},"mm_placeholders":{"image":[%s]}}' % (
            b",".join([name] * (n // 10)),
            b",".join([span] * (n // 10)),
        )
        return parse(Api.VLLM_GENERATE, b'{"token_ids":[%s],"features":%s}' % (b",".join([b"1"] * n), features))

    assert_work_is_in_proportion(run, 10_000)


NESTED = [
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b'{"model":"m","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model":"m","messages":[{"content":' + b'[{"content":' * 50_000 + b"1" + b"}]" * 50_000 + b"}]}",
]
ODD = [
    b'{"model":"m","max_tokens":1e999,"prompt":"x"}',
    b'{"model":"m","max_tokens":-Infinity,"prompt":"x"}',
    b'{"model":"m","max_tokens":NaN,"prompt":"x"}',
    b'{"model":"m","max_tokens":' + b"9" * 5_000 + b',"prompt":"x"}',
    b'{"model":"m","prompt":"\xff\xfe\xfd"}',
    b"\xef\xbb\xbf" + b'{"model":"m","prompt":"x"}',
    b'{"model":' + b'"' + b"m" * 1_000_000 + b'"}',
    b"{" + b",".join(b'"%d":1' % i for i in range(100_000)) + b"}",
    b'{"model":"\\ud800","prompt":"\\udfff"}',
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/inference/v1/generate"])
@pytest.mark.parametrize("body", NESTED + ODD, ids=lambda body: repr(body[:30]))
def test_odd_bodies_are_routed_or_refused_and_leave_nothing(path, body):
    talk = WORLD.post(body, path=path)
    first = talk.replies[0]
    if first.HasField("immediate_response"):
        assert first.immediate_response.status.code in (400, 413)
        assert orjson.loads(first.immediate_response.body)
    else:
        lb = first.dynamic_metadata.fields["envoy.lb"].struct_value
        assert lb.fields["x-gateway-destination-endpoint"].string_value in ADDRESSES
    talk.close()
    WORLD.assert_nothing_is_left()


def test_a_body_that_trickles_is_cut_off_however_alive_it_looks():
    from envoy_messages import DROPPED_REASON, request_body, request_headers, set_headers

    talk = WORLD.open().send(request_headers({":method": "POST", ":path": "/v1/completions"}))
    for _ in range(20):
        WORLD.clock.advance(5.0)
        talk.send(request_body(b"x", end=False))
    (answer,) = talk.replies
    assert answer.immediate_response.status.code == 408
    assert set_headers(answer)[DROPPED_REASON]
    assert talk.stream.finished
    talk.close()
    WORLD.assert_nothing_is_left()


def test_ten_thousand_headers_are_a_broken_protocol_and_leave_nothing():
    from envoy_messages import request_headers

    talk = WORLD.open()
    with pytest.raises(ProtocolError):
        talk.send(request_headers({":method": "POST", **{f"x-{i}": "v" for i in range(10_000)}}))
    talk.close()
    WORLD.assert_nothing_is_left()


@pytest.mark.parametrize("line", [b"data:\n", b"data\n", b":\n", b"\n", b"data: x\r", b"x" * 50, b"event: a\n"])
def test_an_event_without_end_is_held_in_bounded_memory(line):
    reader = SseReader(max_event_bytes=1000)
    tracemalloc.start()
    for _ in range(300):
        reader.feed(line * 100)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 100_000
    assert reader.feed(b"\n\ndata: y\n\n")[-1] == b"y"
