"""The official SDKs take the whole product for one model server, and the picker counts what they were told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from stack import Metrics, Stack, eventually

from epp.sim.config import SimConfig

if TYPE_CHECKING:  # they take seconds to import: only the process that runs these tests does
    import anthropic
    import openai

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_binary"), pytest.mark.asyncio(loop_scope="module")]

MODEL = SimConfig().model
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue? 東京"}]
CHAT: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20}
ANTHROPIC: Any = {"model": MODEL, "messages": MESSAGES[1:], "system": "Be brief.", "max_tokens": 7}


@pytest_asyncio.fixture(loop_scope="module")
async def openai_client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def anthropic_client(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


class Counted:
    """What the picker has counted since this object was made, once nothing is in flight."""

    def __init__(self, stack: Stack, before: Metrics) -> None:
        self._stack = stack
        self._before = self._after = before

    @classmethod
    async def since(cls, stack: Stack) -> Counted:
        return cls(stack, await stack.picker_metrics())

    async def read(self) -> Counted:
        await eventually(self._stack.is_idle)
        self._after = await self._stack.picker_metrics()
        return self

    def __call__(self, name: str, **labels: str) -> float:
        name = f"llm_d_epp_{name}"
        return self._after.total(name, **labels) - self._before.total(name, **labels)

    def tokens(self) -> tuple[float, float]:
        return self("request_input_tokens_sum"), self("request_output_tokens_sum")

    def all_natural(self, requests: int) -> None:
        assert self("request_total") == self("request_end_total", cause="natural") == requests
        assert self("request_end_total") == requests
        assert self("request_error_total") == 0
        assert self._after.total("llm_d_epp_request_running") == 0


async def test_chat_whole(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    whole = await openai_client.chat.completions.create(**CHAT)
    assert whole.choices[0].finish_reason == "length"
    await counted.read()
    counted.all_natural(1)
    assert counted.tokens() == (whole.usage.prompt_tokens, 20)
    assert counted("request_output_tokens_count") == 1
    assert counted("request_ttft_seconds_count", streaming="false", model_name=MODEL) == 1


async def test_a_stream_with_usage_is_counted_once(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await openai_client.chat.completions.create(**CHAT, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    whole = await openai_client.chat.completions.create(**CHAT)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    await counted.read()
    counted.all_natural(2)
    assert chunks[-1].usage.completion_tokens == 20
    assert counted.tokens() == (2 * whole.usage.prompt_tokens, 2 * 20)
    assert counted("request_output_tokens_count") == 2
    assert counted("request_ttft_seconds_count", streaming="true") == 1
    assert counted("request_streaming_tpot_seconds_count") == 1


async def test_a_stream_without_usage_is_measured_and_no_tokens_are_made_up(
    stack: Stack, openai_client: openai.AsyncOpenAI
) -> None:
    counted = await Counted.since(stack)
    stream = await openai_client.chat.completions.create(**CHAT, stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk.usage for chunk in chunks] == [None] * 21
    await counted.read()
    counted.all_natural(1)
    assert counted.tokens() == (0, 0)
    assert counted("request_ttft_seconds_count", streaming="true") == 1


async def test_completions_whole_and_streamed(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    asked: Any = {"model": MODEL, "prompt": ["once upon a time", "there was"], "max_tokens": 4}
    whole = await openai_client.completions.create(**asked)
    stream = await openai_client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts = {0: "", 1: ""}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    ids = await openai_client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=2)
    await counted.read()
    counted.all_natural(3)
    assert counted.tokens() == (2 * whole.usage.prompt_tokens + ids.usage.prompt_tokens, 8 + 8 + 2)


async def test_responses_whole_and_streamed(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    asked: Any = {"model": MODEL, "input": "Why?", "instructions": "Be brief.", "max_output_tokens": 5}
    whole = await openai_client.responses.create(**asked)
    events = [event async for event in await openai_client.responses.create(**asked, stream=True)]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.usage == whole.usage or events[-1].response.usage.output_tokens == 5
    await counted.read()
    counted.all_natural(2)
    assert counted.tokens() == (2 * whole.usage.input_tokens, 10)
    assert counted("request_ttft_seconds_count", streaming="true") == 1


async def test_embeddings(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    answer = await openai_client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [len(item.embedding) > 0 for item in answer.data] == [True, True]
    await counted.read()
    counted.all_natural(1)
    assert counted.tokens() == (answer.usage.prompt_tokens, 0)


async def test_models_are_listed(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    counted = await Counted.since(stack)
    assert [model.id async for model in await openai_client.models.list()] == [MODEL]
    (await counted.read()).all_natural(1)


async def test_anthropic_messages_whole_streamed_and_counted(
    stack: Stack, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    counted = await Counted.since(stack)
    whole = await anthropic_client.messages.create(**ANTHROPIC)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 7)
    async with anthropic_client.messages.stream(**ANTHROPIC) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text
    await counted.read()
    counted.all_natural(2)
    assert counted.tokens() == (whole.usage.input_tokens + final.usage.input_tokens, 14)
    assert counted("request_output_tokens_count") == 2
    limitless = {key: value for key, value in ANTHROPIC.items() if key != "max_tokens"}
    assert (await anthropic_client.messages.count_tokens(**limitless)).input_tokens > 0
    await counted.read()
    assert counted("request_output_tokens_count") == 2


async def test_an_unknown_model_is_the_servers_own_404(
    stack: Stack, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    import anthropic
    import openai

    counted = await Counted.since(stack)
    with pytest.raises(openai.NotFoundError) as from_openai:
        await openai_client.chat.completions.create(**{**CHAT, "model": "nope"})
    assert from_openai.value.body == {
        "message": "The model `nope` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    assert from_openai.value.response.headers["x-sim-server"].startswith("sim-")
    with pytest.raises(anthropic.NotFoundError) as from_anthropic:
        await anthropic_client.messages.create(**{**ANTHROPIC, "model": "nope"})
    assert from_anthropic.value.body["type"] == "error"
    await counted.read()
    assert counted("request_end_total", cause="natural") == 2
    assert counted("request_error_total", model_name="nope", error_code="ModelServerError") == 2
    assert counted("request_ttft_seconds_count") == 0


async def test_nothing_of_prompts_and_answers_is_told_anywhere(stack: Stack, openai_client: openai.AsyncOpenAI) -> None:
    """The picker logs at its most talkative level here; what was asked and answered stays between the two ends."""
    import openai

    canary = "xyzzy-plugh-canary"
    messages: Any = [{"role": "user", "content": f"{canary} größe"}]
    spoken = []
    for stream in (False, True):
        answer: Any = await openai_client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=30, stream=stream, user=canary, extra_headers={"x-note": canary}
        )
        if stream:
            spoken.append("".join([c.choices[0].delta.content or "" async for c in answer if c.choices]))
        else:
            spoken.append(answer.choices[0].message.content)
    with pytest.raises(openai.BadRequestError):
        await openai_client.post("/chat/completions", content=f'{{"prompt": "{canary}'.encode(), cast_to=object)
    with pytest.raises(openai.BadRequestError):
        await openai_client.post("/chat/completions", body=[canary], cast_to=object)
    await eventually(stack.is_idle)
    pages = [(await stack.picker.ask(page)).decode() for page in ("/metrics", "/debug/state", "/debug/plugins/state")]
    logs = [stack.picker.log(), stack.envoy.log_path.read_text()]
    assert '"api":"chat"' in pages[1].replace(" ", "")
    for told in (*pages, *logs):
        assert canary not in told
        assert spoken[0][:20] not in told
        assert spoken[1][:20] not in told
