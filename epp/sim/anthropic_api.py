"""Anthropic's messages and count_tokens, as vLLM answers them."""

from epp.sim.answers import Answer, BadRequest, Job, Json, Refusal, event, positive_int, render_content, render_messages


def error(refusal: Refusal) -> Json:
    """An error body."""
    return {"type": "error", "error": {"type": refusal.kind, "message": str(refusal)}}


def parse_count_tokens(body: Json) -> Job:
    system = render_content(body.get("system"))
    tools = render_content(body.get("tools"))
    prompt = b"\n".join(part for part in (tools, system, render_messages(body.get("messages"), "messages")) if part)
    return Job(body.get("model"), (prompt,))


def parse_messages(body: Json) -> Job:
    max_tokens = positive_int(body, "max_tokens")
    if max_tokens is None:
        raise BadRequest("max_tokens is required", "max_tokens")
    counted = parse_count_tokens(body)
    return Job(counted.model, counted.prompts, max_tokens, stream=bool(body.get("stream")))


class MessagesAnswer(Answer):
    __slots__ = ()

    def token(self, choice: int, last: bool) -> bytes:
        first = b""
        if len(self.texts[choice]) == 1:
            block = {"type": "text", "text": ""}
            start = {"type": "message_start", "message": self._message([], None, self._usage(output_tokens=0))}
            block_start = {"type": "content_block_start", "content_block": block, "index": 0}
            first = event(start, "message_start") + event(block_start, "content_block_start")
        delta = {"type": "text_delta", "text": self.texts[choice][-1]}
        return first + event({"type": "content_block_delta", "delta": delta, "index": 0}, "content_block_delta")

    def closing(self) -> bytes:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": self._usage(self.completion_tokens)}
        return (
            event({"type": "content_block_stop", "index": 0}, "content_block_stop")
            + event(end, "message_delta")
            + event({"type": "message_stop"}, "message_stop")
        )

    def whole(self) -> Json:
        content = [{"type": "text", "text": self.text(0)}]
        return self._message(content, self._stop_reason, self._usage(self.completion_tokens))

    @property
    def _stop_reason(self) -> str:
        return "max_tokens" if self.finish_reason == "length" else "end_turn"

    def _message(self, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
        head = {"id": f"chatcmpl-{self.id}", "type": "message", "role": "assistant", "content": content}
        return head | {"model": self.model, "stop_reason": stop_reason, "stop_sequence": None, "usage": usage}

    def _usage(self, output_tokens: int) -> Json:
        """By Anthropic's rule `input_tokens` leaves out what was read from the cache."""
        if not self.show_cached:
            return {"input_tokens": self.prompt_tokens, "output_tokens": output_tokens}
        uncached = self.prompt_tokens - self.cached_tokens
        cached = {"cache_read_input_tokens": self.cached_tokens}
        return {"input_tokens": uncached} | cached | {"output_tokens": output_tokens}
