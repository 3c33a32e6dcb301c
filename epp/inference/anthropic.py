"""Prompts of Anthropic's Messages API."""

from collections.abc import Mapping

from epp.inference.prompt import PromptBuilder, entries
from epp.inference.request import Prompt

# Claude Code puts a line that changes with every request at the head of its system blocks. Servers drop it, and so
# must we: it would make every prompt look new.
_BILLING_PREFIX = "x-anthropic-billing-header"


def messages(body: Mapping[str, object]) -> tuple[Prompt, ...]:
    prompt = PromptBuilder()
    prompt.json(body.get("tools"))
    prompt.content(_without_billing(body.get("system")))
    for message in entries(body.get("messages")):
        if isinstance(message, dict):
            prompt.text(message.get("role"))
            prompt.content(message.get("content"))
        else:
            prompt.content(message)
    return prompt.build()


def _without_billing(system: object) -> object:
    if isinstance(system, list):
        return [block for block in entries(system) if not _is_billing(block)]
    return system


def _is_billing(block: object) -> bool:
    text = block.get("text") if isinstance(block, dict) else block
    return isinstance(text, str) and text.startswith(_BILLING_PREFIX)
