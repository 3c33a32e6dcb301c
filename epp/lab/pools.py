"""Pools of simulated servers, written as `h100x4+a100x4`.

The step law's constants are those of `epp.sim.timing`. To them the lab adds what long contexts cost, from the size of
model and machine alone:

* context_token_ns = KV bytes of a token / memory bandwidth: each step of a decoding sequence reads all its context;
* attention_pair_ns = prefill_token_us · 1000 · 4·L·d / (2·P), with L layers of width d and P parameters: the ratio of
  the FLOPs of attention, 4·L·d for a pair of tokens, to those of all the rest, 2·P for a token; times 2, since
  attention kernels reach about half the efficiency of the others. (DistServe's fit to an older kernel has 5 for 2.)
* KV cache tokens = (0.9 · memory − weights) / KV bytes of a token, rounded down.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from epp.lab.experiment import LabServer
from epp.problem import Problem
from epp.sim.config import EngineConfig
from epp.sim.timing import HARDWARE, Hardware

BLOCK_TOKENS = 64
"""Of the lab's engines. vLLM's are of 16; the picker's index goes by 64 in either case, and four times fewer blocks are
four times less work. What it changes: up to 63 tokens of a shared beginning, instead of 15, are computed again."""

_MEMORY_USED = 0.9
_ATTENTION_INEFFICIENCY = 2.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model's size: parameters, layers, width, and bytes of KV cache per token (16 bits)."""

    parameters: float
    layers: int
    width: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory and its bandwidth, over all GPUs of one server."""

    memory_bytes: float
    bytes_per_s: float


_8B = Model(8.0e9, 32, 4096, 131_072)  # Llama 3.1
_3B = Model(3.2e9, 28, 3072, 114_688)  # Llama 3.2
_14B = Model(14.8e9, 48, 5120, 196_608)  # Qwen 2.5
_70B = Model(70.6e9, 80, 8192, 327_680)  # Llama 3.1
_H100 = Machine(80e9, 3.35e12)
_A100 = Machine(80e9, 2.04e12)
_L40S = Machine(48e9, 0.864e12)
_4_H100 = Machine(320e9, 13.4e12)

_SHAPES: Mapping[str, tuple[Model, Machine]] = {
    "8b-h100": (_8B, _H100),
    "3b-h100": (_3B, _H100),
    "14b-h100": (_14B, _H100),
    "8b-a100": (_8B, _A100),
    "8b-l40s": (_8B, _L40S),
    "70b-h100-tp4": (_70B, _4_H100),
}
_LAW = ("base_ms", "prefill_token_us", "sequence_us", "attention_pair_ns", "context_token_ns")
_MOST = {**dict.fromkeys(_LAW, 1e6), "base_ms": 1e4, "overhead_ms": 1e6, "kv_tokens": 1e8}  # else runs have no end
_PART = re.compile(r"(?P<name>.+?)(?:x(?P<number>[0-9]{1,9}))?")
MOST_SERVERS = 10_000
SHORT = {"h100": "8b-h100", "a100": "8b-a100", "l40s": "8b-l40s"}


def engine_of(shape: str) -> EngineConfig:
    """The engine of a shape by its name. Raises KeyError."""
    model, machine = _SHAPES[shape]
    law = HARDWARE[shape]
    of_attention = 4 * model.layers * model.width / (2 * model.parameters) * _ATTENTION_INEFFICIENCY
    hardware = replace(
        law,
        attention_pair_ns=law.prefill_token_us * 1e3 * of_attention,
        context_token_ns=model.kv_bytes / machine.bytes_per_s * 1e9,
    )
    kv_tokens = (_MEMORY_USED * machine.memory_bytes - 2 * model.parameters) / model.kv_bytes
    return EngineConfig(hardware=hardware, kv_blocks=int(kv_tokens // BLOCK_TOKENS), block_tokens=BLOCK_TOKENS)


ENGINES: Mapping[str, EngineConfig] = MappingProxyType({shape: engine_of(shape) for shape in _SHAPES})


def with_long_contexts(law: Hardware, like: EngineConfig) -> Hardware:
    """The law, and what long contexts cost on a server like that: short prompts do not show it."""
    known = like.hardware
    return replace(law, attention_pair_ns=known.attention_pair_ns, context_token_ns=known.context_token_ns)


def shape_text(law: Hardware, overhead_ms: float, like: EngineConfig) -> str:
    """A shape of one's own as JSON, for `parse_pool` to read from a file. Memory and batch are those of `like`. Raises
    ValueError, by the name of what is wrong, where that would refuse it."""
    shape = {
        "base_ms": law.base_ms,
        "prefill_token_us": law.prefill_token_us,
        "sequence_us": law.sequence_us,
        "attention_pair_ns": law.attention_pair_ns,
        "context_token_ns": law.context_token_ns,
        "overhead_ms": overhead_ms,
        "kv_tokens": like.kv_blocks * like.block_tokens,
        "max_sequences": like.max_sequences,
        "max_batched_tokens": like.max_batched_tokens,
    }
    _engine_in(shape)
    return json.dumps(shape, indent=2) + "\n"


def _shape_in(path: Path) -> EngineConfig:
    """Of a file that `shape_text` wrote, perhaps edited since. Raises `Problem`."""
    try:
        shape = json.loads(path.read_bytes())
        if not isinstance(shape, dict):
            raise ValueError("no JSON object")
        return _engine_in(shape)
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Problem(f"{path}: no shape of a server ({error}); `epp lab fit --out` writes one") from error


def _engine_in(shape: Mapping[str, Any]) -> EngineConfig:
    """Raises ValueError."""
    law = Hardware(*(_number(shape, name) for name in _LAW))
    overhead_ms = _number(shape, "overhead_ms")
    if not law.base_ms > 0:
        raise ValueError("base_ms has to be above 0")
    return EngineConfig(
        hardware=law,
        overhead_ms=(overhead_ms, overhead_ms),
        kv_blocks=int(_number(shape, "kv_tokens", BLOCK_TOKENS)) // BLOCK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        max_sequences=int(_number(shape, "max_sequences", 1)),
        max_batched_tokens=int(_number(shape, "max_batched_tokens", 1)),
    )


def _number(shape: Mapping[str, Any], name: str, least: float = 0.0) -> float:
    """Raises ValueError."""
    if name not in shape:
        raise ValueError(f"no {name}")
    try:
        value, most = float(shape[name]), _MOST.get(name, math.inf)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is not a number") from None
    if not least <= value <= most or value == math.inf:
        most_words = f" and at most {most:,.0f}" if most < math.inf else ""
        raise ValueError(f"{name} has to be {least:g} or more{most_words}, and is {value:g}")
    return value


def shape_named(name: str, where: str) -> EngineConfig:
    """By its name, long or short, or from a file of one's own. `where` it was named, for the `Problem` raised."""
    if name.endswith(".json"):
        return _shape_in(Path(name))
    engine = ENGINES.get(SHORT.get(name, name))
    if engine is None:
        shapes = ", ".join((*SHORT, *(shape for shape in ENGINES if shape not in SHORT.values())))
        raise Problem(
            f"{where}: no shape is called {name!r}; there are {shapes}, and .json files that `epp lab fit` writes"
        )
    return engine


def shape_files(text: str) -> list[Path]:
    """Those that a pool names."""
    return [Path(name) for name, _ in _parts(text) if name.endswith(".json")]


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """Shapes, and how many servers of each."""
    for part in text.split("+"):
        found = _PART.fullmatch(part.strip())
        yield (found["name"], int(found["number"] or 1)) if found else (part.strip(), 1)


def parse_pool(text: str) -> tuple[LabServer, ...]:
    """The servers of `h100x4+a100x4`, named `h100-0`, … A shape alone is one server; one may be a file of one's own,
    as in `server.jsonx4`. Raises `Problem`."""
    servers: list[LabServer] = []
    for name, number in _parts(text):
        engine = shape_named(name, f"pool {text!r}")
        name = Path(name).stem if name.endswith(".json") else name
        if len(servers) + number > MOST_SERVERS:
            raise Problem(f"pool {text!r}: more than {MOST_SERVERS:,} servers")
        before = sum(server.name.startswith(f"{name}-") for server in servers)
        servers += [LabServer(f"{name}-{before + i}", engine) for i in range(number)]
    if not servers:
        raise Problem(f"pool {text!r} has no servers; write for example h100x4")
    return tuple(servers)
