"""Sends a schedule of requests to a base URL, and notes what became of each.

The load is open: requests are sent when they are due, whatever became of those before, up to `concurrency` at once.
Times count from when a request was due, so that waiting for a slot on our side is not hidden. TTFT is known for streams
only: the first bytes of an answer's body (the servers we simulate send none before the first token in the APIs used).
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from epp.inference.request import Usage
from epp.sim.server import SERVER_HEADER
from epp.sim.workload import PlannedRequest


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one request. `None`: not known.

    Attributes:
        status: HTTP status; `None` when no answer came.
        error: `None` if the whole answer came with a 2xx; else what went wrong, in a few words.
        ttft_ms, tpot_ms: of streams; time per output token needs two tokens at least.
        duration_ms: until the end, however it came.
        server: the simulated server that answered, by its own word.
    """

    planned: PlannedRequest
    status: int | None
    error: str | None
    ttft_ms: float | None
    tpot_ms: float | None
    duration_ms: float
    usage: Usage
    server: str | None


@dataclass(slots=True)
class _Answer:
    """An answer as it comes in."""

    status: int | None = None
    server: str | None = None
    first_s: float | None = None
    pieces: list[bytes] = field(default_factory=list)


async def run_traffic(
    base_url: str,
    schedule: Sequence[PlannedRequest],
    *,
    concurrency: int = 256,
    timeout_s: float = 60.0,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Send the whole schedule; the results in its order. `on_result` is called as each comes in."""
    start_s = time.monotonic()
    slots = asyncio.Semaphore(concurrency)
    timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def send(planned: PlannedRequest) -> Result:
        due_s = start_s + planned.at_s
        await asyncio.sleep(due_s - time.monotonic())
        async with slots:
            result = await _send(session, base_url, planned, due_s)
        if on_result is not None:
            on_result(result)
        return result

    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(send(planned)) for planned in schedule]
    return [task.result() for task in tasks]


async def _send(session: aiohttp.ClientSession, base_url: str, planned: PlannedRequest, due_s: float) -> Result:
    answer = _Answer()
    error = None
    try:
        async with session.post(base_url + planned.path, data=planned.body, headers=planned.headers) as response:
            answer.status = response.status
            answer.server = response.headers.get(SERVER_HEADER)
            async for piece in response.content.iter_any():
                answer.first_s = answer.first_s or time.monotonic()
                answer.pieces.append(piece)
    except TimeoutError:
        error = "timeout"
    except aiohttp.ClientError:
        error = "no answer" if answer.status is None else "broken off"
    end_s = time.monotonic()
    body = b"".join(answer.pieces)
    good = error is None and answer.status is not None and answer.status < 300
    if error is None and not good:
        error = f"HTTP {answer.status}"
    if good and planned.streaming and not _is_whole(planned, body):
        error, good = "cut short", False
    usage = read_usage(body, planned.streaming) if good else Usage()
    streamed_s = answer.first_s if good and planned.streaming else None
    gaps = (usage.completion_tokens or 0) - 1
    return Result(
        planned=planned,
        status=answer.status,
        error=error,
        ttft_ms=None if streamed_s is None else (streamed_s - due_s) * 1000.0,
        tpot_ms=None if streamed_s is None or gaps < 1 else (end_s - streamed_s) * 1000.0 / gaps,
        duration_ms=(end_s - due_s) * 1000.0,
        usage=usage,
        server=answer.server,
    )


def _is_whole(planned: PlannedRequest, body: bytes) -> bool:
    return (b"event: message_stop" if planned.api == "messages" else b"data: [DONE]") in body[-200:]


def read_usage(body: bytes, streaming: bool) -> Usage:
    """Token counts from a whole body or event stream, OpenAI's or Anthropic's; later words add to earlier ones."""
    said: dict[str, Any] = {}
    documents = [body]
    if streaming:
        documents = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {") and b'"usage"' in line]
    for document in documents:
        parsed = orjson.loads(document)
        said |= parsed.get("usage") or parsed.get("message", {}).get("usage") or {}
    if "input_tokens" in said:
        cached = said.get("cache_read_input_tokens")
        return Usage(said["input_tokens"] + (cached or 0), said.get("output_tokens"), cached)
    cached = (said.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(said.get("prompt_tokens"), said.get("completion_tokens"), cached)
