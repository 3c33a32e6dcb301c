"""Whether the picker reads a real vLLM rightly: its metrics page, and its streams as they pass through Envoy."""

import asyncio
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.real_vllm.server import MODEL, SIZES
from epp.inference.request import Usage
from epp.signals.engines import BUILT_IN_ENGINES
from epp.signals.mapping import extract
from epp.signals.page import PageReader
from epp.sim.bootstraps import render_bootstrap
from epp.sim.envoyproxy import EnvoyProxy
from epp.sim.picker_process import PickerProcess
from epp.sim.traffic import read_usage

STREAMS, TOKENS = 4, 60
_LOOK_EVERY_S = 0.05
_SUMS = ("llm_d_epp_request_input_tokens", "llm_d_epp_request_output_tokens", "llm_d_epp_request_ttft_seconds")


@dataclass(frozen=True, slots=True)
class Check:
    """Something that the picker said, and what is true."""

    what: str
    picker: object
    true: object
    good: bool


def checks(url: str) -> list[Check]:
    return [*_page(url), *asyncio.run(_through_envoy(url))]


def _page(url: str) -> list[Check]:
    """Of a server at rest."""
    mapping = next(engine for engine in BUILT_IN_ENGINES if engine.name == "vllm")
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        page = PageReader(mapping.families).read(answer.read())
    signals = extract(mapping, page.samples, None)
    found = (
        ("waiting, at rest", signals.waiting_requests, 0.0),
        ("running, at rest", signals.running_requests, 0.0),
        ("KV block, tokens", signals.kv_block_size_tokens, SIZES.block_tokens),
    )
    return [
        *(Check(what, said, true, said == true) for what, said, true in found),
        Check("KV blocks", signals.kv_blocks, "> 0", bool(signals.kv_blocks)),
        Check("KV use, at rest", signals.kv_cache_usage_ratio, "0..1", signals.kv_cache_usage_ratio is not None),
    ]


async def _through_envoy(url: str) -> list[Check]:
    address = urlsplit(url).netloc
    with tempfile.TemporaryDirectory(prefix="headroom-vllm-") as folder:
        flags = ["--endpoints", address, "--secure-serving=false"]
        async with PickerProcess(Path(folder), flags) as picker:
            bootstrap = render_bootstrap(
                epp_address=f"127.0.0.1:{picker.ports['grpc']}", epp_tls=False, endpoints=[address]
            )
            async with EnvoyProxy(bootstrap) as envoy, aiohttp.ClientSession() as session:
                asked = asyncio.gather(*(_ask(session, envoy.url, number) for number in range(STREAMS)))
                running, kv_usage = 0.0, 0.0
                while not asked.done():
                    (endpoint,) = (await picker.state())["pool"]["endpoints"]
                    running = max(running, endpoint["running_requests"] or 0.0)
                    kv_usage = max(kv_usage, endpoint["kv_cache_usage_ratio"] or 0.0)
                    await asyncio.sleep(_LOOK_EVERY_S)
                usages = await asked
            said = await _sums(picker)
    tokens_in = float(sum(usage.prompt_tokens or 0 for usage in usages))
    tokens_out = float(sum(usage.completion_tokens or 0 for usage in usages))
    return [
        Check("running, most seen", running, STREAMS, running == STREAMS),
        Check("KV use, most seen", round(kv_usage, 4), "> 0", kv_usage > 0),
        Check("prompt tokens of the streams", said[_SUMS[0] + "_sum"], tokens_in, said[_SUMS[0] + "_sum"] == tokens_in),
        Check("output tokens", said[_SUMS[1] + "_sum"], tokens_out, said[_SUMS[1] + "_sum"] == tokens_out),
        Check("first tokens seen", said[_SUMS[2] + "_count"], STREAMS, said[_SUMS[2] + "_count"] == STREAMS),
    ]


async def _ask(session: aiohttp.ClientSession, url: str, number: int) -> Usage:
    body = {
        "model": MODEL,
        "prompt": f"la mi so {number} " * 60,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/v1/completions", json=body, raise_for_status=True) as response:
        return read_usage(await response.read(), streaming=True)


async def _sums(picker: PickerProcess) -> Mapping[str, float]:
    """Of these histograms, over all their series, once all streams have been followed to their end."""
    said: dict[str, float] = {}
    for _ in range(100):
        said = {}
        for family in text_string_to_metric_families((await picker.ask("/metrics")).decode()):
            if family.name in _SUMS:
                for sample in family.samples:
                    said[sample.name] = said.get(sample.name, 0.0) + sample.value
        if said.get(_SUMS[1] + "_count") == STREAMS:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    return said
