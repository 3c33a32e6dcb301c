"""Records of requests from which the lab can replay them: when, how long, and which prompts begin alike. No text.

A prompt becomes the hashes of its blocks, chained as in the prefix index, so equal ones mean equal beginnings. Whoever
knows or guesses a text could recognise such hashes, as each one is the seed of the next. So each is encrypted with a
key that is drawn at the start and written nowhere: what is equal stays equal, and nothing else can be told from it. The
fields are Mooncake's (https://github.com/kvcache-ai/Mooncake), with more of ours beside them.
"""

from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from epp.inference.request import Request
from epp.ledger import Outcome
from epp.observe.trace_file import TraceCounts, TraceFile
from epp.plugins._slo import slo_of
from epp.plugins.token_producer import BYTES_PER_TOKEN, seed_of
from epp.prefix.hashing import block_hashes
from epp.scheduling.cycle import Cycle
from epp.scheduling.data import DEFAULT_PROMPT

BLOCK_TOKENS = 64
"""As engines of the lab have it: a beginning that two prompts share is found to within so many tokens."""
MAX_BLOCKS = 4096
"""Of a prompt, from its start: 262,144 tokens. What comes after counts as shared with nobody."""
MAX_OPEN_BYTES = 64 * 2**20
"""Of requests that have not ended. Those that come when it is full are not recorded."""
RECORD_BYTES = 1024
"""Of a record without its hashes, about."""
MAX_NAME_CHARACTERS = 256

_READABLE_BITS = np.uint64((1 << 53) - 1)  # any reader of JSON keeps such integers


class _Routed(NamedTuple):
    """What is known when a request is sent on. `chain`: its block hashes, as unsigned 64-bit integers."""

    at_s: float
    model: str | None
    input_tokens: int
    chain: bytes
    max_output_tokens: int | None
    priority: int
    ttft_target_ms: float | None
    tpot_target_ms: float | None

    @property
    def size_bytes(self) -> int:
        return RECORD_BYTES + len(self.chain)


class TraceRecorder:
    """For one thread, but for what the file's own thread does."""

    def __init__(self, path: Path, max_bytes: int, key: bytes, counts: TraceCounts, unix_offset_s: float) -> None:
        """
        Args:
            key: 16 random bytes; the same in all processes whose files are to be read together.
            unix_offset_s: what to add to times of requests, to have Unix time.
        """
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())
        self._counts = counts
        self._unix_offset_s = unix_offset_s
        self._open: dict[str, _Routed] = {}
        self._open_bytes = 0
        self._file: TraceFile[tuple[_Routed, Outcome]] = TraceFile(path, max_bytes, self._line, counts)

    def request_routed(self, request: Request, cycle: Cycle) -> None:
        if not request.generates:
            return
        if self._open_bytes > MAX_OPEN_BYTES:
            self._counts.no_room.inc()
            return
        tokens, chain = _hashed(request, cycle)
        slo = slo_of(request.headers)
        self._open[request.id] = routed = _Routed(
            cycle.now_s if cycle.received_s is None else cycle.received_s,
            request.target_model,
            tokens,
            chain,
            request.max_output_tokens,
            request.priority,
            slo.ttft_ms,
            slo.tpot_ms,
        )
        self._open_bytes += routed.size_bytes

    def request_ended(self, request: Request, outcome: Outcome) -> None:
        routed = self._open.pop(request.id, None)
        if routed is not None:
            self._open_bytes -= routed.size_bytes
            self._file.put((routed, outcome), routed.size_bytes)

    def close(self) -> None:
        """Write what has ended."""
        self._file.close()

    def _line(self, record: tuple[_Routed, Outcome]) -> bytes:
        routed, outcome = record
        usage = outcome.usage
        fields = {
            "timestamp": round((routed.at_s + self._unix_offset_s) * 1e3, 3),
            "input_length": routed.input_tokens,
            "output_length": output_tokens(outcome),
            "hash_ids": self._hash_ids(routed.chain),
            "block_tokens": BLOCK_TOKENS,
            "model": _name(routed.model),
            "max_output_tokens": routed.max_output_tokens,
            "priority": routed.priority,
            "ttft_target_ms": routed.ttft_target_ms,
            "tpot_target_ms": routed.tpot_target_ms,
            "streamed": outcome.streamed,
            "status": outcome.status,
            "cause": outcome.cause.value,
            "endpoint": outcome.served_endpoint_id,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "ttft_ms": _rounded(outcome.ttft_ms),
            "tpot_ms": _rounded(outcome.tpot_ms),
            "e2e_ms": _rounded((outcome.ended_s - outcome.received_s) * 1e3),
        }
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    def _hash_ids(self, chain: bytes) -> list[int]:
        """One AES block for each hash: a permutation that only the key knows, cut to 53 bits."""
        plain = np.zeros((len(chain) // 8, 2), dtype=np.uint64)
        plain[:, 0] = np.frombuffer(chain, dtype=np.uint64)
        secret = np.frombuffer(self._cipher.encryptor().update(plain.tobytes()), dtype=np.uint64)
        ids: list[int] = (secret[::2] & _READABLE_BITS).tolist()
        return ids


def path_of_worker(path: str, number: int) -> str:
    """The file of one process of several: `trace.jsonl` becomes `trace.0.jsonl`."""
    plain = Path(path)
    return str(plain.with_suffix(f".{number}{plain.suffix}"))


def output_tokens(outcome: Outcome) -> int | None:
    """By the server's word; else by events of the stream; where those were not counted to the end, by their pace.
    `None`: none of these is known."""
    tokens, events, first_s, counted_s = (
        outcome.usage.completion_tokens,
        outcome.token_events,
        outcome.first_token_s,
        outcome.counted_s,
    )
    if tokens is not None:
        return tokens
    if not outcome.streamed:
        return None if outcome.usage.prompt_tokens is None else 0  # embeddings and the like
    if counted_s is None or first_s is None:
        return events or None
    if events < 2 or counted_s <= first_s:
        return None
    return 1 + round((events - 1) * (outcome.ended_s - first_s) / (counted_s - first_s))


def _hashed(request: Request, cycle: Cycle) -> tuple[int, bytes]:
    """Tokens as the picker estimates them, and the prompt's chain: of several prompts in one request the first's."""
    prompt = cycle.get(DEFAULT_PROMPT)
    if prompt is not None:
        tokens, texts, seed, block_bytes = prompt.tokens, prompt.prompts, prompt.seed, prompt.bytes_per_token
    else:  # no plugin of this configuration wanted it
        texts = tuple(b"".join([part for part in p.parts if isinstance(part, bytes)]) for p in request.prompts)
        tokens = sum([-(-len(text) // BYTES_PER_TOKEN) for text in texts]) or request.body_bytes // BYTES_PER_TOKEN
        seed, block_bytes = seed_of(request), BYTES_PER_TOKEN
    first = texts[0] if texts else b""
    return tokens, array("Q", block_hashes(first, seed, BLOCK_TOKENS * block_bytes, MAX_BLOCKS)).tobytes()


def _name(model: str | None) -> str | None:
    """Short, and without what is no Unicode: headers may hold anything."""
    return None if model is None else model[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 3)
