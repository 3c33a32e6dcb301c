"""Whether an event of a stream carries something that the model generated.

Servers open a stream before there is a token: with the assistant's role, an empty text, the response so far. Taking
such an event for the first token would make a server look fast that has not begun to work, and so would bytes that make
no sense, of a server that is broken. An end is taken for a token, because the model generated it. Of an API that we do
not know everything is, so that it has some first token.
"""

from collections.abc import Mapping
from typing import Any

from epp.inference.jsonbytes import MalformedError, UnreadableError, loads
from epp.inference.request import Api

_READ = frozenset((Api.CHAT, Api.COMPLETIONS, Api.MESSAGES, Api.RESPONSES, Api.VLLM_GENERATE, Api.SGLANG_GENERATE))
_DONE = b"[DONE]"
_ENDS = ("response.completed", "response.incomplete", "message_delta", "message_stop")


def has_token(api: Api, payload: bytes) -> bool:
    """`payload` is the data of one event. Never raises."""
    if payload.strip() == _DONE:
        return False
    try:
        event = loads(payload)
    except (MalformedError, UnreadableError):
        return api not in _READ
    if not isinstance(event, dict):
        return api not in _READ
    if event.get("error"):
        return False
    match api:
        case Api.CHAT | Api.COMPLETIONS | Api.VLLM_GENERATE:
            return any(_choice_has_token(choice) for choice in _list(event.get("choices")))
        case Api.MESSAGES | Api.RESPONSES:
            return _typed_has_token(event)
        case Api.SGLANG_GENERATE:
            return bool(event.get("text") or event.get("output_ids"))
    return True


def _choice_has_token(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    if choice.get("text") or choice.get("token_ids") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _typed_has_token(event: Mapping[str, Any]) -> bool:
    """Anthropic's messages and OpenAI's responses name each event; what was generated is in its `delta`."""
    kind = event.get("type")
    if not isinstance(kind, str) or kind in _ENDS:
        return True
    delta = event.get("delta")
    if isinstance(delta, dict):
        return any(value for name, value in delta.items() if name != "type")
    return bool(delta)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
