"""What clients ask, and when: a seeded schedule of requests of a given shape.

Lengths are lognormal, gaps between arrivals gamma with a given coefficient of variation (1 is a Poisson process; above,
arrivals come in bursts). A group of requests shares the head of its prompts, as users of one application share its
system prompt. Same workload, same seed: the same bytes at the same times.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from epp.sim.text import BYTES_PER_TOKEN

TTFT_SLO_HEADER = "x-llm-d-slo-ttft-ms"
TPOT_SLO_HEADER = "x-llm-d-slo-tpot-ms"
PATHS: Mapping[str, str] = MappingProxyType(
    {"chat": "/v1/chat/completions", "completions": "/v1/completions", "messages": "/v1/messages"}
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths in tokens: `mu` and `sigma` of the logarithm, never more than `most`."""

    mu: float
    sigma: float
    most: int

    @classmethod
    def exactly(cls, tokens: int) -> "Lengths":
        return cls(math.log(tokens), 0.0, tokens)

    def draw(self, rng: random.Random) -> int:
        return min(self.most, max(1, round(rng.lognormvariate(self.mu, self.sigma))))


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of traffic.

    Attributes:
        rate_rps, gap_cv: mean arrival rate, and coefficient of variation of the gaps.
        prompt, output: lengths; `prompt` is what comes after the shared head.
        groups, shared_tokens: how many heads there are, and how long each is; 0 groups share nothing.
        streaming_ratio: how many of the requests ask for a stream.
        slo_ratio: how many carry both SLO headers, with these targets.
        apis: each API used (a key of `PATHS`) with its relative frequency.
    """

    rate_rps: float
    prompt: Lengths
    output: Lengths
    gap_cv: float = 1.0
    groups: int = 0
    shared_tokens: int = 0
    streaming_ratio: float = 0.7
    slo_ratio: float = 0.0
    ttft_slo_ms: float = 500.0
    tpot_slo_ms: float = 30.0
    apis: tuple[tuple[str, float], ...] = (("chat", 6.0), ("completions", 2.0), ("messages", 2.0))


AZURE_CONV = Workload(5.53, Lengths(6.63, 0.985, 16_000), Lengths(5.02, 0.86, 1_500), gap_cv=1.09)
AZURE_CODE = Workload(2.57, Lengths(7.00, 1.36, 16_000), Lengths(2.79, 0.85, 1_500), gap_cv=13.2)
"""Lognormal fits to the Azure LLM inference traces of 2023 (Microsoft, CC-BY 4.0). They fit the middle; their tails are
longer: of prompts the 99th percentile is 7,500 and 16,000 (the cut), in the traces 4,142 and 7,436."""

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        # Short and long prompts from a few applications: a little of everything.
        "mixed": Workload(
            rate_rps=30.0,
            prompt=Lengths(math.log(120), 1.0, 2_000),
            output=Lengths(math.log(40), 0.7, 200),
            groups=8,
            shared_tokens=1_200,
            slo_ratio=0.3,
        ),
        "azure-conv": AZURE_CONV,
        "azure-code": AZURE_CODE,
        # Many tenants, each with a long system prompt of its own: nothing but prefix affinity helps.
        "b2b-saas": Workload(
            rate_rps=10.0,
            prompt=Lengths(math.log(1_200), 0.0, 1_200),
            output=Lengths(math.log(1_000), 0.0, 1_000),
            groups=150,
            shared_tokens=6_000,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a schedule, due `at_s` after its start. `group` is `None` when it shares nothing."""

    at_s: float
    api: str
    streaming: bool
    group: int | None
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return PATHS[self.api]


_TEXT = "who how why all any new old big low one two sun sky sea map law art day "
_WORDS = tuple(_TEXT[i : i + BYTES_PER_TOKEN] for i in range(0, len(_TEXT), BYTES_PER_TOKEN))


def plan(workload: Workload, model: str, requests: int, rng: random.Random) -> list[PlannedRequest]:
    """A schedule of so many requests."""
    heads = _heads(workload, rng)
    shape = workload.gap_cv**-2
    at_s = 0.0
    planned = []
    for _ in range(requests):
        at_s += rng.gammavariate(shape, 1.0 / (shape * workload.rate_rps))
        planned.append(_request(workload, model, at_s, heads, rng))
    return planned


def _heads(workload: Workload, rng: random.Random) -> list[str]:
    return [_prose(rng, workload.shared_tokens) for _ in range(workload.groups)]


def _request(workload: Workload, model: str, at_s: float, heads: list[str], rng: random.Random) -> PlannedRequest:
    apis, weights = zip(*workload.apis, strict=True)
    group = rng.randrange(workload.groups) if heads else None
    api = rng.choices(apis, weights)[0]
    streaming = rng.random() < workload.streaming_ratio
    head = "" if group is None else heads[group]
    question = _prose(rng, workload.prompt.draw(rng))
    body = _body(api, head, question, workload.output.draw(rng)) | {"model": model}
    if streaming:
        body |= {"stream": True} if api == "messages" else {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json"}
    if rng.random() < workload.slo_ratio:
        headers |= {TTFT_SLO_HEADER: f"{workload.ttft_slo_ms:g}", TPOT_SLO_HEADER: f"{workload.tpot_slo_ms:g}"}
    return PlannedRequest(at_s, api, streaming, group, headers, orjson.dumps(body))


def _prose(rng: random.Random, tokens: int) -> str:
    """So many tokens of text, by the simulated servers' rule."""
    return "".join(rng.choices(_WORDS, k=tokens))


def _body(api: str, head: str, question: str, max_tokens: int) -> dict[str, Any]:
    limit = {"max_tokens": max_tokens}
    if api == "completions":
        return {"prompt": head + question} | limit
    user = {"role": "user", "content": question}
    if api == "messages":
        return ({"system": head} if head else {}) | {"messages": [user]} | limit
    return {"messages": [{"role": "system", "content": head}, user] if head else [user]} | limit
