"""The official SDKs take a simulated server for a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from epp.sim.server import SimServer

if TYPE_CHECKING:  # they take seconds to import: only the process that runs these tests does
    import anthropic
    import openai

MESSAGES = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture
async def openai_client(server: SimServer) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
async def anthropic_client(server: SimServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


async def test_chat_streams_what_it_answers_at_once(openai_client: openai.AsyncOpenAI) -> None:
    whole = await openai_client.chat.completions.create(model="sim-model", messages=MESSAGES, max_tokens=20)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20
    stream = await openai_client.chat.completions.create(
        model="sim-model", messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len(text.encode()) > len(text)  # some of it is multibyte
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "length"]
    assert [c.usage is not None for c in chunks] == [False] * 21 + [True]
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 20)
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16
    assert {c.id for c in chunks} == {chunks[0].id}


async def test_usage_comes_only_when_asked_for(openai_client: openai.AsyncOpenAI) -> None:
    stream = await openai_client.chat.completions.create(
        model="sim-model", messages=MESSAGES, max_completion_tokens=3, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert len(chunks) == 4
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_continuous_usage_counts_up(openai_client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await openai_client.chat.completions.create(
        model="sim-model", messages=MESSAGES, max_tokens=3, stream=True, stream_options=options
    )
    assert [chunk.usage.completion_tokens async for chunk in stream] == [0, 1, 2, 3, 3]


async def test_no_limit_ends_with_stop(openai_client: openai.AsyncOpenAI) -> None:
    whole = await openai_client.chat.completions.create(model="sim-model", messages=MESSAGES)
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == 64


async def test_completions_take_text_lists_and_token_ids(openai_client: openai.AsyncOpenAI) -> None:
    one = await openai_client.completions.create(model="sim-model", prompt="once upon a time", max_tokens=4)
    assert one.usage.prompt_tokens == 4
    ids = await openai_client.completions.create(model="sim-model", prompt=[1, 2, 3], max_tokens=4)
    assert ids.usage.prompt_tokens == 3
    many = await openai_client.completions.create(model="sim-model", prompt=["once upon a time", "two"], max_tokens=4)
    assert [choice.index for choice in many.choices] == [0, 1]
    assert many.choices[0].text == one.choices[0].text
    assert many.usage.completion_tokens == 8
    stream = await openai_client.completions.create(
        model="sim-model", prompt=["once upon a time", "two"], max_tokens=4, stream=True
    )
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in many.choices}


async def test_embeddings(openai_client: openai.AsyncOpenAI) -> None:
    by_base64 = await openai_client.embeddings.create(model="sim-model", input=["a", "b"])
    by_floats = await openai_client.embeddings.create(model="sim-model", input="a", encoding_format="float")
    assert by_base64.data[0].embedding == pytest.approx(by_floats.data[0].embedding)
    assert by_base64.data[0].embedding != by_base64.data[1].embedding
    assert by_base64.usage.prompt_tokens == 2


async def test_responses_whole_and_streamed(openai_client: openai.AsyncOpenAI) -> None:
    asked = {"model": "sim-model", "input": "Why?", "instructions": "Be brief.", "max_output_tokens": 5}
    whole = await openai_client.responses.create(**asked)
    assert (whole.status, whole.usage.output_tokens) == ("incomplete", 5)
    events = [event async for event in await openai_client.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [e.type for e in events][:2] == ["response.created", "response.in_progress"]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.input_tokens == whole.usage.input_tokens
    async with openai_client.responses.stream(model="sim-model", input="Why?", max_output_tokens=5) as stream:
        assert (await stream.get_final_response()).usage.output_tokens == 5


async def test_models_and_adapters(openai_client: openai.AsyncOpenAI, server: SimServer) -> None:
    assert [(m.id, m.parent) async for m in await openai_client.models.list()] == [
        ("sim-model", None),
        ("lora-a", "sim-model"),
    ]
    answer = await openai_client.completions.create(model="lora-a", prompt="x", max_tokens=1)
    assert answer.model == "lora-a"


async def test_unknown_model_is_404(
    openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    import anthropic
    import openai

    with pytest.raises(openai.NotFoundError) as from_openai:
        await openai_client.chat.completions.create(model="nope", messages=MESSAGES)
    assert from_openai.value.body["type"] == "NotFoundError"
    assert from_openai.value.body["code"] == 404
    with pytest.raises(anthropic.NotFoundError) as from_anthropic:
        await anthropic_client.messages.create(model="nope", messages=MESSAGES[1:], max_tokens=1)
    assert from_anthropic.value.body["type"] == "error"


async def test_anthropic_messages_whole_and_streamed(anthropic_client: anthropic.AsyncAnthropic) -> None:
    asked = {"model": "sim-model", "messages": MESSAGES[1:], "system": "Be brief. " * 20, "max_tokens": 7}
    whole = await anthropic_client.messages.create(**asked)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 7)
    counted = await anthropic_client.messages.count_tokens(**{k: v for k, v in asked.items() if k != "max_tokens"})
    assert counted.input_tokens == whole.usage.input_tokens
    async with anthropic_client.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == 7
    assert final.usage.cache_read_input_tokens > 0
    assert final.usage.cache_read_input_tokens + final.usage.input_tokens == counted.input_tokens
