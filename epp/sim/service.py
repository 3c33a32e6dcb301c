"""One inference request, from its body to the last byte of its answer."""

import asyncio
import gzip
import socket
import struct
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import orjson
import xxhash
from aiohttp import web

from epp.sim import anthropic_api, openai_api, responses_api
from epp.sim.answers import Answer, BadRequest, Job, Json, Refusal
from epp.sim.config import SimConfig
from epp.sim.faults import FaultState, RequestFault
from epp.sim.runner import EngineRunner, TokenStream
from epp.sim.text import block_hashes, count_tokens, output_token
from epp.sim.types import Admission, SimRequest

_BEFORE_RESET_S = 0.02  # lets the peer read what was written: a reset would overtake it


@dataclass(frozen=True, slots=True)
class Api:
    """A path's way to read a request, to answer it (`None`: its prompt is only counted), and to complain."""

    parse: Callable[[Json], Job]
    answer: type[Answer] | None
    error: Callable[[Refusal], Json]


APIS = {
    "/v1/completions": Api(openai_api.parse_completions, openai_api.CompletionsAnswer, openai_api.error),
    "/v1/chat/completions": Api(openai_api.parse_chat, openai_api.ChatAnswer, openai_api.error),
    "/v1/embeddings": Api(openai_api.parse_embeddings, openai_api.EmbeddingsAnswer, openai_api.error),
    "/v1/responses": Api(responses_api.parse_responses, responses_api.ResponsesAnswer, openai_api.error),
    "/v1/messages": Api(anthropic_api.parse_messages, anthropic_api.MessagesAnswer, anthropic_api.error),
    "/v1/messages/count_tokens": Api(anthropic_api.parse_count_tokens, None, anthropic_api.error),
}


class InferenceService:
    """Answers inference requests from an engine. A client that leaves cancels its handler, which frees its slot."""

    def __init__(self, config: SimConfig, runner: EngineRunner, faults: FaultState) -> None:
        self._config = config
        self._runner = runner
        self._faults = faults
        self._engine_ids = count()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        api = APIS[request.path]
        try:
            fault = self._faults.take()
            await self._strike(request, fault)
            job = api.parse(await read_json(request))
            if job.model is not None and job.model not in (self._config.model, *self._config.adapters):
                raise Refusal(404, "NotFoundError", f"The model `{job.model}` does not exist.", "model")
            if api.answer is None:
                return web.json_response({"input_tokens": count_tokens(job.prompts[0])})
            answer = self._begin(api.answer, job, request)
            with ExitStack() as stack:
                streams = [stack.enter_context(self._submit(job, prompt)) for prompt in job.prompts]
                await self._runner.sleep(fault.slow_start_ms)
                parts = self._generate(answer, streams, request, fault)
                if job.stream:
                    return await _stream(request, answer, parts)
                async for _ in parts:
                    pass
                return web.json_response(body=orjson.dumps(answer.whole()))
        except Refusal as refusal:
            return web.json_response(body=orjson.dumps(api.error(refusal)), status=refusal.status)
        except ConnectionError:  # the client left between two writes, and the cancellation is on its way
            await _until_cancelled()
            raise

    async def _strike(self, request: web.Request, fault: RequestFault) -> None:
        if fault.hang:
            await _until_cancelled()
        if fault.reset_after_tokens == 0:
            await _reset(request)
        if fault.error_status is not None:
            raise Refusal(fault.error_status, "InternalServerError", "this fault was asked for")

    def _begin(self, kind: type[Answer], job: Job, request: web.Request) -> Answer:
        return kind(
            job=job,
            id=request.headers.get("x-request-id") or uuid.uuid4().hex[:16],
            created_s=int(time.time()),
            model=job.model or self._config.model,
            prompt_tokens=sum(count_tokens(prompt) for prompt in job.prompts),
            show_cached=self._config.show_cached_tokens,
            texts=[[] for _ in job.prompts],
        )

    def _submit(self, job: Job, prompt: bytes) -> TokenStream:
        engine = self._config.engine
        prompt_tokens = count_tokens(prompt)
        left_tokens = engine.longest_tokens - prompt_tokens
        output_tokens = job.max_output_tokens or max(1, min(self._config.default_output_tokens, left_tokens))
        adapter = job.model if job.model in self._config.adapters else None
        hashes = block_hashes(prompt, engine.block_tokens, f"{adapter}/{job.cache_salt}")
        request = SimRequest(str(next(self._engine_ids)), prompt_tokens, output_tokens, hashes, adapter)
        stream = self._runner.submit(request)
        if stream is Admission.TOO_LONG:
            asked = f"{prompt_tokens} input tokens and {output_tokens} output tokens"
            longest = f"This model's maximum context length is {engine.longest_tokens} tokens"
            raise BadRequest(f"{longest}. However, you asked for {asked}.", "input_tokens")
        if stream is Admission.QUEUE_FULL:
            raise Refusal(503, "ServiceUnavailableError", "The server is overloaded, please try again later.")
        assert isinstance(stream, TokenStream)
        return stream

    async def _generate(
        self, answer: Answer, streams: Sequence[TokenStream], request: web.Request, fault: RequestFault
    ) -> AsyncIterator[bytes]:
        """Fill the answer, choice by choice; what comes at once of a stream is one piece of its event stream."""
        for choice, (stream, prompt) in enumerate(zip(streams, answer.job.prompts, strict=True)):
            seed = xxhash.xxh32_intdigest(prompt)
            last = False
            while not last:
                pieces = []
                for event in await stream.next():
                    last = event.last
                    if event.index == 0:
                        answer.cached_tokens += event.cached_tokens
                    answer.texts[choice].append(output_token(seed, event.index))
                    if answer.job.stream:
                        pieces.append(answer.token(choice, last))
                    if answer.completion_tokens == fault.reset_after_tokens:
                        yield b"".join(pieces)
                        await asyncio.sleep(_BEFORE_RESET_S)
                        await _reset(request)
                yield b"".join(pieces)


async def read_json(request: web.Request) -> Json:
    """The body as a JSON object, its content-encoding undone. Raises BadRequest."""
    body = await request.read()
    try:
        match request.headers.get("content-encoding", "identity"):
            case "gzip":
                body = gzip.decompress(body)
            case "deflate":
                body = zlib.decompress(body)
        parsed = orjson.loads(body)
    except (OSError, EOFError, zlib.error):
        raise BadRequest("the body is not what its content-encoding says") from None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"1 validation error:\n  JSON decode error at position {error.pos}", "body") from None
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object", "body")
    return parsed


async def _stream(request: web.Request, answer: Answer, parts: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)  # sends the headers: long before the first token, as vLLM does
    if opening := answer.opening():
        await response.write(opening)
    async for part in parts:
        await response.write(part)
    await response.write(answer.closing())
    await response.write_eof()
    return response


async def _reset(request: web.Request) -> None:
    """Break the connection off with a TCP reset, which the peer cannot take for an orderly end."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    await _until_cancelled()


async def _until_cancelled() -> None:
    """Wait for the client to leave: that cancels the handler."""
    await asyncio.Event().wait()
