"""OpenAI's responses, as vLLM answers them."""

from epp.sim.answers import Answer, BadRequest, Job, Json, event, positive_int, render_content, render_messages

# What a response repeats of a request that set none of it.
_UNSET: Json = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "input_messages": None,
    "output_messages": None,
}


def parse_responses(body: Json) -> Job:
    given = body.get("input")
    if isinstance(given, str):
        prompt = render_messages([{"role": "user", "content": given}], "input")
    elif isinstance(given, list):
        prompt = render_messages(given, "input")
    else:
        raise BadRequest("input must be text or a list of items", "input")
    instructions = render_content(body.get("instructions"))
    return Job(
        model=body.get("model"),
        prompts=(instructions + b"\n" + prompt if instructions else prompt,),
        max_output_tokens=positive_int(body, "max_output_tokens"),
        stream=bool(body.get("stream")),
        cache_salt=str(body.get("cache_salt") or ""),
    )


class ResponsesAnswer(Answer):
    __slots__ = ()

    def opening(self) -> bytes:
        response = self._response("in_progress", [], None)
        return b"".join(
            event({"response": response, "sequence_number": number, "type": kind}, kind)
            for number, kind in enumerate(("response.created", "response.in_progress"))
        )

    def token(self, choice: int, last: bool) -> bytes:
        number = len(self.texts[0])
        first = b""
        if number == 1:
            item = self._item([], "in_progress")
            part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
            first = self._event("response.output_item.added", 2, item=item) + self._event(
                "response.content_part.added", 3, content_index=0, item_id=self._item_id, part=part
            )
        delta = self.texts[0][-1]
        return first + self._event("response.output_text.delta", number + 3, **self._place, delta=delta, logprobs=[])

    def closing(self) -> bytes:
        number = len(self.texts[0]) + 4
        done = self.whole()
        kind = "response.completed"
        return (
            self._event("response.output_text.done", number, **self._place, logprobs=[], text=self.text(0))
            + self._event("response.content_part.done", number + 1, **self._place, part=self._part)
            + self._event("response.output_item.done", number + 2, item=done["output"][0])
            + event({"response": done, "sequence_number": number + 3, "type": kind}, kind)
        )

    def whole(self) -> Json:
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        status = "incomplete" if self.finish_reason == "length" else "completed"
        return self._response(status, [self._item([self._part], "completed")], usage)

    @property
    def _item_id(self) -> str:
        return f"msg_{self.id}"

    @property
    def _place(self) -> Json:
        return {"content_index": 0, "item_id": self._item_id}

    @property
    def _part(self) -> Json:
        return {"annotations": [], "text": self.text(0), "type": "output_text", "logprobs": None}

    def _event(self, kind: str, number: int, **fields: object) -> bytes:
        return event(fields | {"output_index": 0, "sequence_number": number, "type": kind}, kind)

    def _item(self, content: list[Json], status: str) -> Json:
        head = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return head | {"type": "message", "phase": None}

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        head = {"id": f"resp_{self.id}", "created_at": self.created_s, "model": self.model, "object": "response"}
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        limits = {"max_output_tokens": self.job.max_output_tokens, "incomplete_details": reason}
        return head | _UNSET | limits | {"status": status, "output": output, "usage": usage}
