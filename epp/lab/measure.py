"""A ladder of requests to a real server, to fit its shape by: few, bounded, each prompt new to its cache.

The server speaks OpenAI's completions API with streams. Its own usage says how many tokens a prompt had.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from epp.lab.fit import Measurement
from epp.lab.parallel import ProgressBar
from epp.problem import Problem
from epp.sim.text import BYTES_PER_TOKEN

LADDER: tuple[tuple[int, int], ...] = ((1, 64), (1, 512), (1, 2048), (2, 512), (4, 256), (8, 128), (16, 64))
"""Streams at once, and prompt tokens of each: single ones for base and prefill, many short ones for the batch."""
OUTPUT_TOKENS = 32
TIMEOUT_S = 120.0
_WORDS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx", "yz"]


@dataclass(frozen=True, slots=True)
class _Stream:
    ttft_ms: float
    tpot_ms: float | None
    prompt_tokens: int
    output_tokens: int


def measure(
    url: str, model: str, repeats: int, seed: int, ladder: Sequence[tuple[int, int]] = LADDER
) -> list[Measurement]:
    """Climb the ladder `repeats` times, after one request to warm up. Raises `Problem`."""
    if (why := _why_no_url(url)) is not None:
        raise Problem(f"--url {url}: {why}; write for example http://10.0.0.1:8000")
    return asyncio.run(_measure(url.rstrip("/"), model, repeats, random.Random(seed), ladder))


def _why_no_url(url: str) -> str | None:
    if not url.startswith(("http://", "https://")):
        return "begins with neither http:// nor https://"
    if any(character.isspace() for character in url):
        return "has a space in it"
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            return "names no host"
        return "has a port that is none" if parts.port == 0 else None
    except ValueError as error:  # of brackets, and of ports
        return str(error)


async def _measure(
    url: str, model: str, repeats: int, rng: random.Random, ladder: Sequence[tuple[int, int]]
) -> list[Measurement]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    found = []
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            await _stream(session, url, model, _prompt(rng, 64))
            with ProgressBar(repeats * len(ladder), "rungs") as progress:
                for _ in range(repeats):
                    for streams, tokens in ladder:
                        asks = (_stream(session, url, model, _prompt(rng, tokens)) for _ in range(streams))
                        found.append(_together(await asyncio.gather(*asks)))
                        progress.step()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Problem(f"{url}: {error or type(error).__name__}; is it a server of OpenAI's completions API?") from error
    return found


def _together(streams: Sequence[_Stream]) -> Measurement:
    tpot = [s.tpot_ms for s in streams if s.tpot_ms is not None]
    return Measurement(
        len(streams),
        median(s.prompt_tokens for s in streams),
        median(s.output_tokens for s in streams),
        median(s.ttft_ms for s in streams),
        median(tpot) if tpot else None,
    )


def _prompt(rng: random.Random, tokens: int) -> str:
    """New text of about so many tokens."""
    text = " ".join(rng.choices(_WORDS, k=2 * tokens))
    return text[: tokens * BYTES_PER_TOKEN]


async def _stream(session: aiohttp.ClientSession, url: str, model: str, prompt: str) -> _Stream:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.perf_counter()
    first_s = last_s = None
    usage: dict[str, Any] = {}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise Problem(
                f"{url}: answered {response.status} to a request for model {model!r}; {url}/v1/models says what "
                "--model may be"
            )
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            try:
                event = orjson.loads(line[6:])
            except ValueError as error:
                raise Problem(f"{url}: an event of the stream is no JSON ({error})") from error
            usage = event.get("usage") or usage
            if event.get("choices"):
                last_s = time.perf_counter()
                first_s = last_s if first_s is None else first_s
    if first_s is None or last_s is None or not usage:
        raise Problem(f"{url}: the stream had no tokens or no usage in it; stream_options.include_usage is needed")
    try:
        tokens, prompt_tokens = int(usage["completion_tokens"]), int(usage["prompt_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise Problem(f"{url}: the stream's usage has no prompt_tokens and completion_tokens ({error})") from error
    tpot_ms = (last_s - first_s) * 1e3 / (tokens - 1) if tokens > 1 else None
    return _Stream((first_s - started_s) * 1e3, tpot_ms, prompt_tokens, tokens)
