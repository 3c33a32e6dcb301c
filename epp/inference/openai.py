"""Prompts of OpenAI's APIs: completions, chat, responses, conversations, embeddings, images."""

from collections.abc import Mapping

from epp.inference.prompt import PromptBuilder, entries, text_or_tokens
from epp.inference.request import Prompt

# What an item of the Responses API can show to a template: messages, calls and their results, reasoning summaries.
_ITEM_CONTENTS = ("content", "summary", "output")
_ITEM_TEXTS = ("role", "name", "arguments")


def completions(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    return text_or_tokens(body.get("prompt"))


def chat(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    """Tools and documents stand first, as templates put them into the system block."""
    prompt = PromptBuilder()
    prompt.json(body.get("tools"))
    prompt.json(body.get("functions"))
    prompt.json(body.get("documents"))
    for message in entries(body.get("messages")):
        if not isinstance(message, dict):
            prompt.content(message)
            continue
        has_more = len(message) > ("role" in message) + ("content" in message)  # as a rule it has not
        prompt.text(message.get("role"))
        if has_more:
            prompt.text(message.get("reasoning_content") or message.get("reasoning"))
        prompt.content(message.get("content"))
        if has_more:
            prompt.json(message.get("tool_calls"))
            prompt.json(message.get("function_call"))
    return prompt.build()


def responses(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    """What the server remembers (an earlier response, a conversation, a stored prompt) is known by its name only."""
    prompt = PromptBuilder()
    prompt.json(body.get("tools"))
    prompt.text(body.get("instructions"))
    prompt.text(body.get("previous_response_id"))
    for stored in (body.get("conversation"), body.get("prompt")):
        if isinstance(stored, str):
            prompt.text(stored)
        else:
            prompt.json(stored)
    _items(prompt, body.get("input"))
    return prompt.build()


def conversations(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    prompt = PromptBuilder()
    _items(prompt, body.get("items"))
    return prompt.build()


def embeddings(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    """vLLM also takes chat messages here."""
    return text_or_tokens(body.get("input")) or chat(body)


def images(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    return text_or_tokens(body.get("prompt"))


def _items(prompt: PromptBuilder, items: object) -> None:
    if not isinstance(items, list):
        prompt.content(items)
        return
    for item in entries(items):
        if not isinstance(item, dict) or not any(item.get(key) for key in (*_ITEM_TEXTS, *_ITEM_CONTENTS)):
            prompt.content(item)
            continue
        for key in _ITEM_TEXTS:
            prompt.text(item.get(key))
        for key in _ITEM_CONTENTS:
            prompt.content(item.get(key))
