"""OpenAI's completions, chat completions and embeddings, as vLLM answers them."""

import base64
import struct
from abc import abstractmethod
from typing import Any

import xxhash

from epp.sim.answers import Answer, BadRequest, Job, Json, Refusal, event, positive_int, render_messages, stream_options
from epp.sim.text import token_ids_as_bytes

_FINGERPRINT = "sim"
_NO_TRANSFER: Json = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
_EMBEDDING_SIZE = 8


def error(refusal: Refusal) -> Json:
    """An error body."""
    fields = {"message": str(refusal), "type": refusal.kind, "param": refusal.param, "code": refusal.status}
    return {"error": fields}


def parse_prompts(prompt: object, name: str) -> tuple[bytes, ...]:
    """A string, a list of strings, a list of token ids or a list of such lists."""
    if isinstance(prompt, str):
        return (prompt.encode(),)
    try:
        if isinstance(prompt, list) and prompt:
            if all(isinstance(item, str) for item in prompt):
                return tuple(item.encode() for item in prompt)
            if all(isinstance(item, list) for item in prompt):
                return tuple(token_ids_as_bytes(item) for item in prompt)
            return (token_ids_as_bytes(prompt),)
    except (AttributeError, OverflowError, TypeError):
        pass
    raise BadRequest(f"{name} must be text, token ids, or a list of either", name)


def parse_completions(body: Json) -> Job:
    return Job(
        model=body.get("model"),
        prompts=parse_prompts(body.get("prompt"), "prompt"),
        max_output_tokens=positive_int(body, "max_tokens") or 16,  # the API's own default
        stream=bool(body.get("stream")),
        cache_salt=str(body.get("cache_salt") or ""),
        **stream_options(body),
    )


def parse_chat(body: Json) -> Job:
    tools = body.get("tools")
    prompt = render_messages(body.get("messages"), "messages")
    return Job(
        model=body.get("model"),
        prompts=(
            prompt if tools is None else render_messages([{"role": "tools", "content": tools}], "tools") + prompt,
        ),
        max_output_tokens=positive_int(body, "max_completion_tokens", "max_tokens"),
        stream=bool(body.get("stream")),
        cache_salt=str(body.get("cache_salt") or ""),
        **stream_options(body),
    )


def parse_embeddings(body: Json) -> Job:
    prompts = parse_prompts(body.get("input"), "input")
    return Job(body.get("model"), prompts, 1, base64=body.get("encoding_format") == "base64")


class _OpenAiAnswer(Answer):
    __slots__ = ()

    object_name: str
    chunk_name: str

    @property
    @abstractmethod
    def full_id(self) -> str: ...

    def usage(self, *, streaming: bool) -> Json:
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }
        details = {"cached_tokens": self.cached_tokens} if self.show_cached else None
        if not streaming:
            return usage | {"prompt_tokens_details": details, "completion_tokens_details": None}
        return usage if details is None else usage | {"prompt_tokens_details": details}

    def head(self, object_name: str) -> Json:
        return {"id": self.full_id, "object": object_name, "created": self.created_s, "model": self.model}

    def chunk(self, choices: list[Json], **more: Any) -> bytes:
        data = self.head(self.chunk_name) | {"choices": choices}
        if self.job.continuous_usage:
            data["usage"] = self.usage(streaming=True) | {"completion_tokens_details": None}
        return event(data | more)

    def fingerprint(self, last: bool) -> Json:
        """For the last chunk with a choice, unless a chunk with the usage follows: then it stands there."""
        return {"system_fingerprint": _FINGERPRINT} if last and not self.job.include_usage else {}

    def closing(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self.job.include_usage:
            return done
        end = self.head(self.chunk_name) | {"choices": [], "usage": self.usage(streaming=True)}
        return event(end | {"system_fingerprint": _FINGERPRINT}) + done

    def whole_of(self, choices: list[Json], **more: Any) -> Json:
        tail = {"service_tier": None, "system_fingerprint": _FINGERPRINT, "usage": self.usage(streaming=False)}
        return self.head(self.object_name) | {"choices": choices} | tail | more | _NO_TRANSFER


class CompletionsAnswer(_OpenAiAnswer):
    __slots__ = ()

    object_name = chunk_name = "text_completion"

    @property
    def full_id(self) -> str:
        return f"cmpl-{self.id}"

    def token(self, choice: int, last: bool) -> bytes:
        fields = {"index": choice, "text": self.texts[choice][-1], "logprobs": None}
        end = {"finish_reason": self.finish_reason if last else None, "stop_reason": None}
        done = last and choice == len(self.job.prompts) - 1
        return self.chunk([fields | end | {"prompt_token_ids": None, "token_ids": None}], **self.fingerprint(done))

    def whole(self) -> Json:
        end = {"finish_reason": self.finish_reason, "stop_reason": None, "token_ids": None, "prompt_logprobs": None}
        end |= {"prompt_token_ids": None, "routed_experts": None}
        return self.whole_of(
            [{"index": i, "text": self.text(i), "logprobs": None} | end for i in range(len(self.texts))]
        )


class ChatAnswer(_OpenAiAnswer):
    __slots__ = ()

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    @property
    def full_id(self) -> str:
        return f"chatcmpl-{self.id}"

    def token(self, choice: int, last: bool) -> bytes:
        first = b""
        if len(self.texts[choice]) == 1:  # the role comes in a chunk of its own, together with the first token's
            delta = {"role": "assistant", "content": ""}
            role = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
            newest = self.texts[choice].pop()  # continuous usage counts it from the next chunk on
            first = self.chunk([role], prompt_token_ids=None, prompt_text=None)
            self.texts[choice].append(newest)
        fields: Json = {"index": choice, "delta": {"content": self.texts[choice][-1]}, "logprobs": None}
        end = {"finish_reason": self.finish_reason, "stop_reason": None} if last else {"finish_reason": None}
        return first + self.chunk([fields | end | {"token_ids": None}], **self.fingerprint(last))

    def whole(self) -> Json:
        empty = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
        message = {"role": "assistant", "content": self.text(0)} | empty
        end = {"finish_reason": self.finish_reason, "stop_reason": None, "token_ids": None, "routed_experts": None}
        choice = {"index": 0, "message": message, "logprobs": None} | end
        return self.whole_of([choice], prompt_logprobs=None, prompt_token_ids=None, prompt_text=None)


class EmbeddingsAnswer(_OpenAiAnswer):
    __slots__ = ()

    object_name = chunk_name = "list"

    @property
    def full_id(self) -> str:
        return f"embd-{self.id}"

    def token(self, choice: int, last: bool) -> bytes:
        return b""  # embeddings do not stream

    def whole(self) -> Json:
        tokens = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens, "completion_tokens": 0}
        data = [
            {"index": i, "object": "embedding", "embedding": self._vector(prompt)}
            for i, prompt in enumerate(self.job.prompts)
        ]
        return self.head("list") | {"data": data, "usage": tokens | {"prompt_tokens_details": None}}

    def _vector(self, prompt: bytes) -> list[float] | str:
        vector = [xxhash.xxh32_intdigest(prompt, seed) / 2**32 for seed in range(_EMBEDDING_SIZE)]
        if self.job.base64:
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return vector
