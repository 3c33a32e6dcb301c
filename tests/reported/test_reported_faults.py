"""Faults that users of other pickers met and that cross our rooms. The index is docs/reported-faults.md."""

import re
from pathlib import Path

import pytest
from envoy_messages import request_body, response_body, response_headers
from picker_in_memory import World

ROOT = Path(__file__).parent.parent.parent
INDEX = (ROOT / "docs" / "reported-faults.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in INDEX.splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]
NODES = sorted(set(re.findall(r"`(tests/[^`]+)`", INDEX)))
EVENT = b'data: {"choices":[{"index":0,"text":"ab"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":10}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("node", NODES)
def test_every_test_that_the_index_names_is_there(node: str):
    path, _, name = node.partition("::")
    assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_row_of_the_index_has_a_test_or_a_reason():
    assert len(ROWS) > 100
    for title, links, answer in ROWS:
        assert title
        assert "](https://" in links or links == "our own scenario"
        assert answer.startswith("`tests/") or re.fullmatch(r"not ours: .+", answer)


def test_an_answer_that_nobody_inspects_keeps_its_stream_to_the_end():
    world = World()
    talk = world.post({"model": "m", "messages": []}, path="/v1/messages/count_tokens")
    assert not talk.exchange.finished
    talk.send(response_headers(200, {"content-type": "application/json"}))
    assert not talk.exchange.finished
    talk.send(response_body(b'{"input_tokens":', False), response_body(b"3}", True))
    kinds = [reply.WhichOneof("response") for reply in talk.replies]
    assert kinds == ["request_headers", "request_body", "response_headers", "response_body", "response_body"]
    talk.close()
    world.assert_nothing_is_left()


def test_a_streamed_answer_of_ten_chunks_is_counted_once_and_to_its_last_byte():
    world = World()
    talk = world.post({"model": "m", "prompt": "x", "stream": True})
    talk.send(response_headers(200, {"content-type": "text/event-stream"}))
    for _ in range(9):
        world.clock.advance(0.1)
        talk.send(response_body(EVENT))
    talk.send(response_body(USAGE, True))
    talk.close()
    assert world.count("llm_d_epp_response_size_bytes_sum") == 9 * len(EVENT) + len(USAGE)
    assert world.count("llm_d_epp_request_output_tokens_sum") == 10
    assert world.count("llm_d_epp_request_output_tokens_count") == 1
    world.assert_nothing_is_left()


def test_a_refusal_before_any_choice_took_no_longer_than_it_took():
    world = World()
    world.post(b"{not json").close()
    assert world.count("llm_d_epp_request_processing_duration_seconds_count") == 1
    assert 0 <= world.count("llm_d_epp_request_processing_duration_seconds_sum") < 1


def test_a_last_chunk_that_comes_twice_decides_and_counts_once():
    world = World()
    body = b'{"model":"m","prompt":"' + b"x" * 1_000 + b'"}'
    talk = world.post(body)
    before = len(talk.replies)
    talk.send(request_body(b""), request_body(body[-100:]))
    assert len(talk.replies) == before
    assert sum(world.held()) == 1
    talk.close()
    world.assert_nothing_is_left()


def test_an_empty_pool_has_no_ready_endpoint_and_says_so():
    world = World()
    world.metrics.refresh_pool(world.store.snapshot(), world.clock.now_s, 2.0)
    assert world.count("llm_d_epp_ready_endpoints") == 3
    world.store.replace([])
    world.metrics.refresh_pool(world.store.snapshot(), world.clock.now_s, 2.0)
    assert "llm_d_epp_ready_endpoints" in {family.name for family in world.registry.collect()}
    assert world.count("llm_d_epp_ready_endpoints") == 0


@pytest.mark.parametrize("chunk", [b"", b"<html>", b'{"usage": {"prompt_tokens": -1', b"data: {", b"\xff\xfe"])
@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_however_an_answer_ends_its_place_is_free_again(status: int, chunk: bytes):
    world = World()
    for how in ("end", "half", "gone"):
        talk = world.post({"model": "m", "prompt": "x"})
        assert sum(world.held()) == 1
        talk.send(response_headers(status, {"content-type": "text/html"}, end=how == "end" and not chunk))
        if chunk:
            talk.send(response_body(chunk, how == "end"))
        talk.close(cancelled=how == "gone")
        world.assert_nothing_is_left()
